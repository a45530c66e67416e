-- Claim suspects if there are any, otherwise tasks that are due.
--
-- include: clock, attempts, due, late_lease, payloads, suspects
-- KEYS[1] scheduled  zset    task id -> due time, ms
-- KEYS[2] leased     zset    task id -> lease expiry, ms
-- KEYS[3] payloads   hash    task id -> opaque bytes
-- KEYS[4] tokens     hash    task id -> token of its lease, and a record of its attempts
-- KEYS[5] claims     zset    claimer -> end of the leases that its latest claim gave, ms
-- KEYS[6] alone      string  id of the suspect that was last claimed alone
-- KEYS[7] paused     string  present while the queue is paused
-- ARGV[1] now_ms   ARGV[2] limit   ARGV[3] lease_ms   ARGV[4] token   ARGV[5] claimer: an id of the caller
-- ARGV[6] reply_by, ms: nobody waits for the reply after that; '' if the caller does not know the server's time yet
-- ARGV[7] any of these words
--   again   the caller has asked with this token before, and got no reply
--   newest  in a backlog, take those that became due last
--   spares  Redis was away for the caller: leave leases that have ended to their workers
--
-- Returns {paused, now, next_in_us, ids, payloads, dues, tried}: next_in_us is the time until there is more to claim,
-- negative if nothing is scheduled or leased; payloads is empty if no task has one. Without tasks, three values.
--   tried  for each that was claimed before: {place among ids from 0, appointment, failures, deliveries, attempt}
--
-- Never early: a task is due when its score is not after now, and now is rounded down.
-- Asking again brings the same tasks again, so a lost reply costs no delivery and no time. If the queue is paused by
-- then, or the limit is 0, they are put back. A claim that runs after reply_by leases nothing.
-- While more than BACKLOG are due, the oldest and the newest are claimed in turn.
-- Payloads are read before the first write, so that an error loses no task, and only as many as fit in one reply.
-- The first write is a ZREM or ZREMRANGEBYSCORE, because a server whose memory is full checks only the first.

local BACKLOG = 1000
local MOST_LATE = 100
local REMEMBERED_MS = 3600000
local limit, lease, token, claimer = tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4], ARGV[5]
local reply_by = tonumber(ARGV[6])
local function says(word) return string.find(ARGV[7], word, 1, true) end

-- Three questions in one call: EXISTS counts a key each time that it is named.
local there = redis.call('EXISTS', paused, payloads, payloads, leased, leased, leased, leased)
local is_paused, has_payloads, has_leases = there % 2 == 1, there % 4 >= 2, there >= 4

if not is_paused and reply_by and now > reply_by then return {0, now, 0} end
local ids, states, dues = {}, {}, {}

-- Takes the tasks that an earlier claim with this token leased. The limit may be lower now, or 0: the rest is put back.
local function take_again()
  local lease_end = redis.call('ZSCORE', claims, claimer)
  local all = lease_end and redis.call('ZRANGEBYSCORE', leased, lease_end, lease_end) or {}
  for first = 1, #all, 1000 do
    local some = {unpack(all, first, math.min(first + 999, #all))}
    for i, kept in ipairs(redis.call('HMGET', tokens, unpack(some))) do
      if kept and string.sub(kept, 1, 64) == token then
        local state = attempts_in(kept, whole(now))
        if #ids < limit then
          ids[#ids + 1], states[#states + 1] = some[i], state
        else
          state.span = 0
          redis.call('ZREM', leased, some[i])
          redis.call('ZADD', scheduled, state.due, some[i])
          redis.call('HSET', tokens, some[i], kept_as(NOBODY, state))
        end
      end
    end
  end
end

-- Takes those that were due first, or last, up to a suspect that was put back: that is claimed alone, too. Returns their
-- rank on the schedule.
local function take_due()
  local command, from, to, count = 'ZRANGEBYSCORE', '-inf', now, 0
  if says('newest') then
    count = redis.call('ZCOUNT', scheduled, from, to)
    if count > math.max(BACKLOG, limit) then
      command, from, to = 'ZREVRANGEBYSCORE', to, from
    else
      count = 0
    end
  end
  local due, all = redis.call(command, scheduled, from, to, 'WITHSCORES', 'LIMIT', 0, limit), {}
  for i = 1, #due, 2 do all[(i + 1) / 2] = due[i] end
  if #all == 0 then return 0 end
  all = fitting(all, has_payloads)
  for i, kept in ipairs(redis.call('HMGET', tokens, unpack(all))) do
    -- The text, because most are first attempts, which cost less so.
    local state, at = due[2 * i], tonumber(due[2 * i])
    -- Other programs may have written scores that are not whole numbers.
    if at < 0 or at % 1 > 0 then
      at = math.max(0, math.floor(at))
      state = whole(at)
    end
    if kept then state = attempts_in(kept, state) end
    local suspect = kept and state.deliveries > 0
    if suspect and i > 1 then break end
    ids[i], states[i], dues[i] = all[i], state, at
    if suspect then break end
  end
  return math.max(0, count - #ids)
end

-- A few in each call, and those that end last: leases that are long on purpose end before them.
local function shorten_late_leases()
  local late = redis.call('ZREVRANGEBYSCORE', leased, '+inf', '(' .. whole(now + lease), 'LIMIT', 0, MOST_LATE)
  if #late > 0 then redis.call('ZREM', leased, '') end -- a full server refuses a ZADD as the first write
  for _, id in ipairs(late) do shorten_lease(id) end
end

local function first_lease_end() return tonumber(redis.call('ZRANGE', leased, 0, 0, 'WITHSCORES')[2]) end

local function next_moment()
  return math.min(has_leases and not says('spares') and first_lease_end() or math.huge, next_due() or math.huge)
end

if is_paused then limit = 0 end
if says('again') then take_again() end
if limit == 0 then return {is_paused and 1 or 0, now, -1} end

local rank
if #ids == 0 and has_leases and not says('spares') and first_lease_end() <= now then
  ids, states = suspects(math.floor(math.sqrt(limit)), has_payloads)
end
if #ids == 0 then rank = take_due() end
if has_leases then shorten_late_leases() end

if #ids == 0 then
  redis.call('ZREMRANGEBYSCORE', claims, '-inf', now - REMEMBERED_MS)
  local next_ms = next_moment()
  return {0, now, next_ms < math.huge and us_until(next_ms) or -1}
end

local bodies = has_payloads and redis.call('HMGET', payloads, unpack(ids)) or {}
if rank then
  redis.call('ZREMRANGEBYRANK', scheduled, rank, rank + #ids - 1)
else
  redis.call('ZREM', leased, unpack(ids))
end
local next_in_us = us_until(math.min(next_moment(), now + lease))
local ends, leases, rows, tried = whole(now + lease), {}, {}, {}
local before, after = token .. 'v1 ' .. whole(lease) .. ' ', ' 0 0 0 ' .. whole(now) .. ' '
for i, id in ipairs(ids) do
  local state = states[i]
  leases[2 * i - 1], leases[2 * i], rows[2 * i - 1] = ends, id, id
  if type(state) == 'string' then
    rows[2 * i] = before .. state .. ' ' .. state .. after
  else
    state.span, state.claimed = lease, now
    rows[2 * i], dues[i] = kept_as(token, state), tonumber(state.due)
    tried[#tried + 1] = {i - 1, tonumber(state.appointment), state.failures, state.deliveries, state.attempts + 1}
  end
end
redis.call('ZADD', leased, unpack(leases))
redis.call('ZADD', claims, ends, claimer)
redis.call('HSET', tokens, unpack(rows))
if type(states[1]) == 'table' and states[1].deliveries > 1 then redis.call('SET', alone, ids[1]) end
return {0, now, next_in_us, ids, bodies, dues, tried}
