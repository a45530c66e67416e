-- Give leased tasks back as they were: due when they were due, nothing counted.
--
-- KEYS[1] leased     zset  task id -> lease expiry, ms
-- KEYS[2] scheduled  zset  task id -> due time, ms
-- KEYS[3] tokens     hash  task id -> token of its lease, and when the task was first due, ms
-- KEYS[4] first_due  hash  task id -> when it was first due, ms, for tasks put back
-- ARGV[1] wake channel   ARGV[2] token   ARGV[3..] id, ...
--
-- Returns {id, ...}: the tasks whose lease is lost. No valid token, no write.
--
-- A task is in exactly one of scheduled, leased, dead. ZREM is the first write, so that a
-- server whose memory is full lets the rest pass.

local ids = {unpack(ARGV, 3)}
local lost, released = {}, false
for i, kept in ipairs(redis.call('HMGET', KEYS[3], unpack(ids))) do
  local id = ids[i]
  if kept and string.sub(kept, 1, 64) == ARGV[2] then
    local first_due = string.sub(kept, 65)
    redis.call('ZREM', KEYS[1], id)
    redis.call('HDEL', KEYS[3], id)
    redis.call('ZADD', KEYS[2], first_due, id)
    redis.call('HSET', KEYS[4], id, first_due)
    released = true
  else
    lost[#lost + 1] = id
  end
end
if released then redis.call('PUBLISH', ARGV[1], '') end
return lost
