-- Settle leased tasks: each is done, dead, or put back on the schedule.
--
-- include: clock, attempts, lease, due, wake
-- KEYS[1] leased     zset  task id -> lease expiry, ms
-- KEYS[2] scheduled  zset  task id -> due time, ms
-- KEYS[3] tokens     hash  task id -> token of its lease, and a record of its attempts
-- KEYS[4] payloads   hash  task id -> opaque bytes
-- KEYS[5] dead       zset  task id -> when it died, ms
-- KEYS[6] letters    hash  task id -> why it is dead, JSON
-- KEYS[7] channel    channel of messages for those who wait
-- ARGV[1] now_ms
-- ARGV[2..] groups: token, verb, delay_ms, text, how many tasks, id, ...; verb is one of
--   'done'      it is gone; text is '' if it has no payload
--   'dead'      a dead letter: text, a JSON object to which died_at_ms is added
--   'released'  put back as it was, due when it was, whatever the delay; nothing is counted
--   'failed'    put back, like all below; counts a failure. Text says why, without a space; '' is no reason
--   'again'     resets failures and deliveries
--   'not due'   as 'again', but without a span, so that restore.lua may bring it forward
--   'new'       a new appointment
--   'later'     neither counts nor resets
--
-- Returns {id, ...}: the tasks whose lease was lost. Without a valid token nothing is written.
--
-- A task is in exactly one of scheduled, leased, dead. A dead one keeps its payload and its record for requeue.
-- The first write is a ZREM, because a server whose memory is full checks only the first.

local lost, was_next, released = {}, nil, false

local function bury(id, kept, letter)
  redis.call('HSET', tokens, id, kept_as(NOBODY, attempts_in(kept, '0')))
  redis.call('ZADD', dead, now + since_now_us / 1000, id)
  redis.call('HSET', letters, id, string.sub(letter, 1, -2) .. ',"died_at_ms":' .. whole(now) .. '}')
end

local function put_back(id, kept, verb, score, why)
  local later = whole(math.max(0, score))
  local state = attempts_in(kept, later)
  local claimed = state.claimed
  if verb == 'released' then
    score, state.span, released = state.due, 0, true
  else
    state.attempts, state.error = state.attempts + 1, why
    if verb == 'failed' then
      state.failures = state.failures + 1
    elseif verb == 'again' or verb == 'not due' then
      state.failures, state.deliveries, state.due = 0, 0, later
    elseif verb == 'new' then
      state = attempts_in(nil, later)
    end
    -- From the claim, because the handler decided on what it read after that. See restore.lua.
    state.span = verb == 'not due' and 0 or math.max(0, score - claimed)
  end
  was_next = was_next or next_due() or math.huge
  redis.call('ZADD', scheduled, score, id)
  redis.call('HSET', tokens, id, kept_as(NOBODY, state))
end

local first = 2
while first < #ARGV do
  local verb, delay, text = ARGV[first + 1], ARGV[first + 2], ARGV[first + 3]
  local last = first + 4 + ARGV[first + 4]
  local held, records = held_by(ARGV[first], first + 5, last, lost)
  if #held > 0 then
    redis.call('ZREM', leased, unpack(held))
    if verb == 'done' then
      redis.call('HDEL', tokens, unpack(held))
      if text ~= '' then redis.call('HDEL', payloads, unpack(held)) end
    else
      for i, id in ipairs(held) do
        if verb == 'dead' then
          bury(id, records[i], text)
        else
          put_back(id, records[i], verb, now + delay, text)
        end
      end
    end
  end
  first = last + 1
end
if released then wake(next_due()) elseif was_next then wake_if_due_before(was_next) end
return lost
