-- Claim suspects if there are any, otherwise tasks that are due.
--
-- include: clock, attempts, late_lease, let_go, wake, outage, lost_claims
-- KEYS[1] scheduled    zset    task id -> due time, ms
-- KEYS[2] leased       zset    task id -> lease expiry, ms
-- KEYS[3] payloads     hash    task id -> opaque bytes
-- KEYS[4] tokens       hash    task id -> token of its lease, and a record of its attempts
-- KEYS[5] lost_claims  zset    token of a claim whose reply was lost -> when to forget it, ms
-- KEYS[6] claims       zset    claimer -> end of the leases that its latest claim gave, ms
-- KEYS[7] alone        string  id of the suspect that was last claimed alone
-- KEYS[8] paused       string  present while the queue is paused
-- KEYS[9] spared       string  until when ended leases are left to their workers after an outage, ms
-- KEYS[10] waiting     zset    claimer -> when it claims next, ms
-- ARGV[1] now_ms   ARGV[2] wake channel   ARGV[3] limit   ARGV[4] suspects_limit   ARGV[5] lease_ms
-- ARGV[6] token   ARGV[7] claimer: an id of the caller
-- ARGV[8] for how long the caller waits at most if there is nothing to claim, ms; '' if it does not wait as it is told,
--         '0' if it no longer does
-- ARGV[9] '1': another thread of the caller is about to claim
-- ARGV[10] when the caller expects this claim to run, ms; '' if it does not know the server's time yet
-- ARGV[11] for how long a call of the caller has not been answered since its last claim, ms
-- ARGV[12] '1': take those that were due last, in a backlog
-- ARGV[13..] tokens of the caller's earlier claims whose reply was lost
--
-- Returns {paused, now, next_in_us (-1: tasks were claimed, nothing is scheduled or leased, or others watch),
--          id, payload, due, appointment, failures, deliveries, attempts, ...}
--
-- Never early: a task is due when its score is not after now, and now is rounded down.
-- A task whose lease expired may have killed its worker. Such suspects are claimed a few at a time, and
-- alone from the second time on, so that a task that kills its worker is isolated from the others: until it has
-- outlived a lease, no other such suspect begins. An expired lease from a claim whose reply was lost is not counted.
-- An outage of Redis is not the death of a worker. Whoever saw it tells, and then no lease counts as ended for
-- SPARED_MS, in which live workers extend theirs. A claim that waited out the outage in a socket leases nothing:
-- its caller has stopped waiting for the reply, or asks again at once.
-- While more than BACKLOG are due, the oldest and the newest are claimed in turn.
-- Payloads are read before the first write, so an error loses no task, and no more of them than fit in one
-- reply: copying hundreds of MB would block the server for seconds, and the caller's timeout would lose the reply.
-- The first write is a ZREM or ZREMRANGEBYSCORE, because a server whose memory is full checks only the first.

local ALONE_MS = 100
local BACKLOG = 1000
local MOST_BYTES = 1048576
local MOST_LATE = 100
local MOST_SUSPECTS = 100
local limit, lease, token = tonumber(ARGV[3]), tonumber(ARGV[5]), ARGV[6]

local late = ARGV[10] == '' and 0 or now - tonumber(ARGV[10])
note_silence(math.max(late, tonumber(ARGV[11])), lease)

-- In a paused queue, too, because the caller reports its lost claims only once.
if #ARGV > 12 then note_lost_claims(13, ARGV[7], lease) end
if late > STALE_MS then return {redis.call('EXISTS', paused), now, 0} end
if ARGV[8] == '0' then redis.call('ZREM', waiting, ARGV[7]) end
local shares_watch = ARGV[8] ~= '' and ARGV[8] ~= '0'

-- Three questions in one call: a key that is named several times counts as often.
local there = redis.call('EXISTS', paused, payloads, payloads, leased, leased, leased, leased)
local has_leases, has_payloads = there >= 4, there % 4 >= 2
if there % 2 == 1 then return {1, now, -1} end

-- The record of each task's attempts. For a task that was never claimed it is only the due time, as text,
-- because building a table for each would cost a fifth of the claim.
local ids, states = {}, {}

-- Whether a suspect that must be alone has to wait for another such suspect. That one may be about to kill
-- its worker, and with it every task that the worker holds. It has not if its lease was extended a whole lease
-- after it was claimed. Whoever waits is tried again a little later.
local function must_wait(id)
  local other = redis.call('GET', alone)
  if not other or other == id then return false end
  local until_ms = tonumber(redis.call('ZSCORE', leased, other) or nil)
  local state = attempts_in(redis.call('HGET', tokens, other), '0')
  local is_new = until_ms and until_ms < state.claimed + 2 * state.span
  if not (is_new and until_ms > now and state.deliveries > 1) then return false end
  redis.call('ZREM', leased, id)
  redis.call('ZADD', leased, now + ALONE_MS, id)
  return true
end

-- The tasks among these whose payloads fit in one reply, in order: at least the first.
local function fitting(all)
  if #all < 2 or not has_payloads then return all end
  local fits, room = {}, MOST_BYTES
  for i, id in ipairs(all) do
    room = room - redis.call('HSTRLEN', payloads, id)
    if i > 1 and room < 0 then break end
    fits[i] = id
  end
  return fits
end

-- Takes suspects that expired for the first time, in order, or one that must be alone: the one that was claimed
-- last, because a task that kills its worker soon was claimed after those that have been running for longer.
local function take_suspects()
  local expired = redis.call('ZRANGEBYSCORE', leased, '-inf', now, 'LIMIT', 0, MOST_SUSPECTS)
  local found, last = {}, nil
  for i, kept in ipairs(redis.call('HMGET', tokens, unpack(expired))) do
    local state = attempts_in(kept, whole(now))
    state.token = string.sub(kept or NOBODY, 1, 64)
    found[i] = state
    local is_candidate = state.deliveries > 0 and not is_cancelled(state)
    if is_candidate and (not last or state.claimed > found[last].claimed) then last = i end
  end
  for i, id in ipairs(fitting({unpack(expired, 1, tonumber(ARGV[4]))})) do
    local state = found[i]
    local is_alone = state.deliveries > 0
    if is_cancelled(state) then
      let_go(id, state)
    elseif #ids == 0 or not (is_alone or states[1].deliveries > 1) then
      if not (is_alone and must_wait(id)) then
        if is_alone then id, state = expired[last], found[last] end
        if not redis.call('ZSCORE', lost_claims, state.token) then
          state.deliveries, state.attempts = state.deliveries + 1, state.attempts + 1
        end
        ids[#ids + 1], states[#states + 1] = id, state
      end
    end
  end
end

local function take_due()
  local command, from, to, all = 'ZRANGEBYSCORE', '-inf', now, {}
  if ARGV[12] == '1' then
    local count = redis.call('ZCOUNT', scheduled, from, to)
    if count == 0 then return end
    if count > math.max(BACKLOG, limit) then command, from, to = 'ZREVRANGEBYSCORE', to, from end
  end
  local due = redis.call(command, scheduled, from, to, 'WITHSCORES', 'LIMIT', 0, limit)
  if #due == 0 then return end
  for i = 1, #due, 2 do all[#all + 1] = due[i] end
  all = fitting(all)
  for i, kept in ipairs(redis.call('HMGET', tokens, unpack(all))) do
    local score = due[2 * i]
    -- Other programs may have written scores that are not whole numbers.
    if not string.find(score, '^%d+$') then score = whole(math.max(0, math.floor(tonumber(score)))) end
    local state = kept and attempts_in(kept, score) or score
    -- A suspect that was put back is claimed alone, too, when it is the first.
    local suspect = kept and state.deliveries > 0
    if i == 1 or not suspect then ids[#ids + 1], states[#states + 1] = all[i], state end
    if i == 1 and suspect then break end
  end
end

-- Of a caller's claims that find tasks, in the first one and then in every second one. A few in each call, and those
-- that end last: leases that are long on purpose end before them.
local function shorten_late_leases()
  local late = redis.call('ZREVRANGEBYSCORE', leased, '+inf', '(' .. whole(now + lease), 'LIMIT', 0, MOST_LATE)
  if #late > 0 then redis.call('ZREM', leased, '') end -- a full server refuses a ZADD as the first write
  for _, id in ipairs(late) do shorten_lease(id) end
end

local function first_lease_end() return tonumber(redis.call('ZRANGE', leased, 0, 0, 'WITHSCORES')[2]) end

local lease_end = has_leases and first_lease_end()
local from, spared_until = leased, 0
if lease_end and lease_end <= now then
  spared_until = leases_spared_until()
  if spared_until <= now then take_suspects() end
end
if #ids == 0 then
  from = scheduled
  take_due()
end
if lease_end and (#ids == 0 or ARGV[10] == '' or ARGV[12] == '1') then shorten_late_leases() end

if #ids == 0 then
  local upcoming = next_due()
  lease_end = lease_end and first_lease_end()
  local next_ms = math.min(lease_end and math.max(lease_end, spared_until) or math.huge, upcoming or math.huge)
  if shares_watch then
    local others, in_us = plan_claims(next_ms, ARGV[7], now + tonumber(ARGV[8]))
    tell(others)
    return {0, now, in_us or -1}
  end
  return {0, now, next_ms < math.huge and math.max(0, (next_ms - now) * 1000 - since_now_us) or -1}
end

local reply, leases, rows = {0, now, -1}, {}, {}
local token_and_span = token .. 'v1 ' .. whole(lease) .. ' '
local first_attempt = ' 0 0 0 ' .. whole(now)
local bodies = has_payloads and redis.call('HMGET', payloads, unpack(ids)) or {}
redis.call('ZREM', from, unpack(ids))
for i, id in ipairs(ids) do
  local state = states[i]
  local at = 7 * i - 3
  leases[2 * i - 1], leases[2 * i] = now + lease, id
  rows[2 * i - 1] = id
  reply[at], reply[at + 1] = id, bodies[i] or ''
  if type(state) == 'string' then
    rows[2 * i] = token_and_span .. state .. ' ' .. state .. first_attempt
    reply[at + 2], reply[at + 3], reply[at + 4], reply[at + 5], reply[at + 6] = state, state, 0, 0, 0
  else
    state.span, state.claimed = lease, now
    rows[2 * i] = kept_as(token, state)
    reply[at + 2], reply[at + 3] = state.due, state.appointment
    reply[at + 4], reply[at + 5], reply[at + 6] = state.failures, state.deliveries, state.attempts
  end
end
redis.call('ZADD', leased, unpack(leases))
redis.call('ZADD', claims, now + lease, ARGV[7])
redis.call('HSET', tokens, unpack(rows))
if type(states[1]) == 'table' and states[1].deliveries > 1 then redis.call('SET', alone, ids[1]) end
if shares_watch and ARGV[9] == '' then
  redis.call('ZREM', waiting, ARGV[7])
  -- There is a lease, at least that of these tasks. The one that ends first may be that of a dead worker.
  tell(plan_claims(math.min(next_due() or math.huge, first_lease_end())))
end
return reply
