-- Put tasks on the schedule.
--
-- KEYS[1] scheduled   zset  task id -> due time, ms
-- KEYS[2] leased      zset  task id -> lease expiry, ms
-- KEYS[3] letters     hash  task id -> why it is dead
-- KEYS[4] payloads    hash  task id -> opaque bytes
-- KEYS[5] tokens      hash  task id -> token of its lease, and when the task was first due, ms
-- KEYS[6] failures    hash  task id -> times it failed alone
-- KEYS[7] deliveries  hash  task id -> times its lease expired
-- KEYS[8] first_due   hash  task id -> when it was first due, ms, for tasks put back
-- ARGV[1] wake channel   ARGV[2] '1': leave a known task alone
-- ARGV[3..] id, due_at_ms, payload ('' is none), ...
--
-- Returns {'created' | 'rescheduled' | 'unchanged', ...}
--
-- A task is in exactly one of scheduled, leased, dead. Rescheduling a leased task takes it
-- from its holder, who finds its token gone. Only requeue brings back a dead one.

local function head()
  return tonumber(redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')[2])
end

local only_if_absent = ARGV[2] == '1'
local head_before = head()
local answers = {}
for i = 3, #ARGV, 3 do
  local id, due, payload = ARGV[i], tonumber(ARGV[i + 1]), ARGV[i + 2]
  local scheduled = redis.call('ZSCORE', KEYS[1], id)
  local known = scheduled or redis.call('ZSCORE', KEYS[2], id)
  local same = scheduled and tonumber(scheduled) == due and (redis.call('HGET', KEYS[4], id) or '') == payload
  if same or (known and only_if_absent) or redis.call('HEXISTS', KEYS[3], id) == 1 then
    answers[#answers + 1] = 'unchanged'
  else
    if known then
      redis.call('ZREM', KEYS[2], id)
      for k = 4, 8 do redis.call('HDEL', KEYS[k], id) end
    end
    redis.call('ZADD', KEYS[1], due, id)
    if payload ~= '' then redis.call('HSET', KEYS[4], id, payload) end
    answers[#answers + 1] = known and 'rescheduled' or 'created'
  end
end

local head_after = head()
if head_after and (not head_before or head_after < head_before) then
  redis.call('PUBLISH', ARGV[1], '')
end
return answers
