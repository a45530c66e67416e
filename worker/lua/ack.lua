-- Forget tasks that are done.
--
-- KEYS[1] leased      zset  task id -> lease expiry, ms
-- KEYS[2] tokens      hash  task id -> token of its lease, and when the task was first due, ms
-- KEYS[3] payloads    hash  task id -> opaque bytes
-- KEYS[4] failures    hash  task id -> times it failed alone
-- KEYS[5] deliveries  hash  task id -> times its lease expired
-- KEYS[6] first_due   hash  task id -> when it was first due, ms, for tasks put back
-- ARGV[1] token   ARGV[2..] id, ...
--
-- Returns {id, ...}: the tasks whose lease is lost. No valid token, no write.

local ids = {unpack(ARGV, 2)}
local held, lost = {}, {}
for i, kept in ipairs(redis.call('HMGET', KEYS[2], unpack(ids))) do
  local list = kept and string.sub(kept, 1, 64) == ARGV[1] and held or lost
  list[#list + 1] = ids[i]
end
if #held > 0 then
  redis.call('ZREM', KEYS[1], unpack(held))
  for k = 2, 6 do redis.call('HDEL', KEYS[k], unpack(held)) end
end
return lost
