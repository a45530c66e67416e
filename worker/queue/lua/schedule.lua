-- Put tasks on the schedule.
--
-- include: clock, attempts, due, wake
-- KEYS[1] scheduled  zset  task id -> due time, ms
-- KEYS[2] leased     zset  task id -> lease expiry, ms
-- KEYS[3] letters    hash  task id -> why it is dead
-- KEYS[4] payloads   hash  task id -> opaque bytes
-- KEYS[5] tokens     hash  task id -> token of its lease, and a record of its attempts
-- KEYS[6] channel    channel of messages for those who wait
-- ARGV[1] now_ms
-- ARGV[2..] id, due, payload ('' is none), ...; due is
--   '1700000000000'  a time, ms
--   '+5000.25'       a delay, ms, from now; '+-5000' is overdue
--
-- Returns {'created' | 'rescheduled' | 'unchanged' | 'dead', ...}
--
-- A task is in exactly one of scheduled, leased, dead. Rescheduling a leased task takes it
-- from its worker, which then finds its token gone. Only requeue brings back a dead task.

local was_next = next_due()
local answers, earliest = {}, math.huge
for i = 2, #ARGV, 3 do
  local id, payload = ARGV[i], ARGV[i + 2]
  local delay = string.match(ARGV[i + 1], '^%+(.+)')
  -- Rounded up, so that the delay is never too short.
  local due = delay and math.max(0, now + math.ceil(since_now_us / 1000 + delay)) or tonumber(ARGV[i + 1])
  local before = redis.call('ZSCORE', scheduled, id)
  local known = before or redis.call('ZSCORE', leased, id)
  local same = before and tonumber(before) == due and (redis.call('HGET', payloads, id) or '') == payload
  if same then
    answers[#answers + 1] = 'unchanged'
  elseif redis.call('HEXISTS', letters, id) == 1 then
    answers[#answers + 1] = 'dead'
  else
    -- The payload first: if that fails, the task is still where it was.
    if payload ~= '' then
      if known then redis.call('ZREM', leased, '') end -- a full server refuses an HSET as the first write
      redis.call('HSET', payloads, id, payload)
    elseif known then
      redis.call('HDEL', payloads, id)
    end
    if known then
      redis.call('ZREM', leased, id)
      redis.call('HDEL', tokens, id)
    end
    redis.call('ZADD', scheduled, due, id)
    earliest = math.min(earliest, due)
    answers[#answers + 1] = known and 'rescheduled' or 'created'
  end
end
if earliest < (was_next or math.huge) then wake(earliest) end
return answers
