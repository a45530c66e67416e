-- Claim tasks that are due.
--
-- include: clock, attempts, due, suspects
-- KEYS[1] scheduled  zset    task id -> due time, ms
-- KEYS[2] leased     zset    task id -> lease expiry, ms
-- KEYS[3] payloads   hash    task id -> opaque bytes
-- KEYS[4] tokens     hash    task id -> token of its lease, and a record of its attempts
-- KEYS[5] claims     zset    claimer -> end of the leases that its latest claim gave, ms
-- KEYS[6] control    hash    paused: present while the queue is; alone: id of the suspect that was last claimed alone
-- ARGV[1] now_ms   ARGV[2] limit   ARGV[3] lease_ms   ARGV[4] token   ARGV[5] claimer: an id of the caller
-- ARGV[6] reply_by, ms: nobody waits for the reply after that; '' if the caller does not know the server's time yet
-- ARGV[7] ahead_ms: with a task that is due, take those that will be so soon, unless they were claimed before
-- ARGV[8] any of these words
--   newest       in a backlog, take those that became due last
--   spares       Redis was away for the caller: leave leases that have ended to their workers
--   redelivered  the caller has just had redeliver.lua run: do not tell of leases that have ended
--
-- Returns {state, now, next_in_us, ids, payloads, dues, tried}; without tasks, the first three.
--   state       1: the queue is paused; 2: nothing is claimed, because leases have ended: redeliver those first; else 0
--   next_in_us  the time until there is more to claim, 0 if the claim came too late, negative if the queue is paused, or
--               nothing is scheduled or leased; leases that are spared do not count
--   payloads    empty if no task has one
--   tried       for each that was claimed before: {place among ids from 0, appointment, failures, deliveries, attempt}
--
-- Never early: a task is due when its score is not after now, and now is rounded down. Who takes some ahead waits.
-- A claim that runs after reply_by leases nothing. If a claim's reply is lost, give_back.lua undoes the claim.
-- While more than BACKLOG are due, the oldest and the newest are claimed in turn.
-- Suspects of one death are claimed few at a time; of more, alone, and not while another of those may be about to kill.
-- Payloads are read before their tasks leave the schedule, so that an error loses none, and only as many as fit in one
-- reply: to copy hundreds of MB would block the server for seconds.
-- The first write removes something, because a server whose memory is full checks only the first.

local BACKLOG, MOST_BYTES, REMEMBERED_MS = 1000, 1048576, 3600000
local limit, lease, token, claimer = tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4], ARGV[5]
local reply_by, ahead = tonumber(ARGV[6]), math.min(tonumber(ARGV[7]), ALONE_MS - 1) -- so that none is put off to be ahead
local function says(word) return string.find(ARGV[8], word, 1, true) end

if redis.call('HEXISTS', control, 'paused') == 1 then return {1, now, -1} end
if reply_by and now > reply_by then return {0, now, 0} end
local has_payloads = redis.call('EXISTS', payloads) == 1
local ids, states = {}, {} -- a state is text for a first attempt: only its due time

-- Takes those that were due first, or last, as long as they are of one kind: redelivered never, once or more often. Returns
-- their rank on the schedule.
local function take_due()
  local count = says('newest') and redis.call('ZCOUNT', scheduled, '-inf', now) or 0
  local newest = count > math.max(BACKLOG, limit)
  local due = newest and redis.call('ZREVRANGEBYSCORE', scheduled, now, '-inf', 'WITHSCORES', 'LIMIT', 0, limit)
    or redis.call('ZRANGEBYSCORE', scheduled, '-inf', now + ahead, 'WITHSCORES', 'LIMIT', 0, limit)
  if #due == 0 then return 0 end
  local all, waiting, room = {}, 0, MOST_BYTES
  for i = 1, #due, 2 do all[(i + 1) / 2] = due[i] end
  local kind, together = 0, {[0] = limit, math.floor(math.sqrt(limit)), 1}
  for i, kept in ipairs(redis.call('HMGET', tokens, unpack(all))) do
    -- Of first attempts, which most are, only the due time: that costs half. It is whole, whatever other programs wrote.
    local state = whole(math.max(0, math.floor(due[2 * i])))
    if kept then state = attempts_in(kept, state) end
    local of_kind = kept and math.min(state.deliveries, 2) or 0
    if has_payloads and #all > 1 then room = room - redis.call('HSTRLEN', payloads, all[i]) end
    if #ids > 0 and (of_kind ~= kind or #ids == together[kind] or room < 0) then break end
    if (#ids == 0 or kept) and tonumber(due[2 * i]) > now then break end
    if of_kind == 2 and lone_suspect_is_new() then
      put_off(scheduled, all[i])
      state.span = ALONE_MS
      redis.call('HSET', tokens, all[i], kept_as(NOBODY, state))
      waiting = waiting + 1
    else
      ids[#ids + 1], states[#states + 1], kind = all[i], state, of_kind
    end
  end
  return newest and count - waiting - #ids or 0
end

local function next_lease_end()
  return not says('spares') and tonumber(redis.call('ZRANGE', leased, 0, 0, 'WITHSCORES')[2]) or math.huge
end

local function next_in_us()
  local next_ms = math.min(next_lease_end(), next_due() or math.huge)
  return next_ms < math.huge and us_until(next_ms) or -1
end

if not says('redelivered') and next_lease_end() <= now then return {2, now, 0} end
local rank = take_due()

if #ids == 0 then
  redis.call('ZREMRANGEBYSCORE', claims, '-inf', now - REMEMBERED_MS)
  return {0, now, next_in_us()}
end

local bodies = has_payloads and redis.call('HMGET', payloads, unpack(ids)) or {}
redis.call('ZREMRANGEBYRANK', scheduled, rank, rank + #ids - 1)
local ends, leases, rows, dues, tried = whole(now + lease), {}, {}, {}, {}
local before, after = token .. 'v1 ' .. whole(lease) .. ' ', ' 0 0 0 ' .. whole(now) .. ' '
for i, id in ipairs(ids) do
  local state = states[i]
  leases[2 * i - 1], leases[2 * i], rows[2 * i - 1] = ends, id, id
  if type(state) == 'string' then
    rows[2 * i], dues[i] = before .. state .. ' ' .. state .. after, tonumber(state)
  else
    state.span, state.claimed = lease, now
    rows[2 * i], dues[i] = kept_as(token, state), tonumber(state.due)
    tried[#tried + 1] = {i - 1, tonumber(state.appointment), state.failures, state.deliveries, state.attempts + 1}
  end
end
redis.call('ZADD', leased, unpack(leases))
redis.call('ZADD', claims, ends, claimer)
redis.call('HSET', tokens, unpack(rows))
if type(states[1]) == 'table' and states[1].deliveries > 1 then redis.call('HSET', control, 'alone', ids[1]) end
return {0, now, next_in_us(), ids, bodies, dues, tried}
