-- Take a task off the schedule.
--
-- KEYS[1] scheduled   zset  task id -> due time, ms
-- KEYS[2] leased      zset  task id -> lease expiry, ms
-- KEYS[3] payloads    hash  task id -> opaque bytes
-- KEYS[4] failures    hash  task id -> times it failed alone
-- KEYS[5] deliveries  hash  task id -> times its lease expired
-- KEYS[6] first_due   hash  task id -> when it was first due, ms, for tasks put back
-- ARGV[1] id
--
-- Returns 'removed', 'leased' (a worker has it: nothing is changed) or 'missing'.

local id = ARGV[1]
if redis.call('ZREM', KEYS[1], id) == 1 then
  for k = 3, 6 do redis.call('HDEL', KEYS[k], id) end
  return 'removed'
end
if redis.call('ZSCORE', KEYS[2], id) then return 'leased' end
return 'missing'
