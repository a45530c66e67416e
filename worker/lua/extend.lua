-- Hold leased tasks for longer.
--
-- KEYS[1] leased  zset  task id -> lease expiry, ms
-- KEYS[2] tokens  hash  task id -> token of its lease, and when the task was first due, ms
-- ARGV[1] now_ms ('' is the server's clock)   ARGV[2] lease_ms   ARGV[3] token   ARGV[4..] id, ...
--
-- Returns {id, ...}: the tasks whose lease is lost. No valid token, no write.
--
-- The ZREM removes nothing, because no id is empty. It is there because a server whose memory is
-- full refuses a ZADD only if it is the first write of a script.

local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
local expiry = now + tonumber(ARGV[2])
local ids = {unpack(ARGV, 4)}
local lost = {}
redis.call('ZREM', KEYS[1], '')
for i, kept in ipairs(redis.call('HMGET', KEYS[2], unpack(ids))) do
  if kept and string.sub(kept, 1, 64) == ARGV[3] then
    redis.call('ZADD', KEYS[1], expiry, ids[i])
  else
    lost[#lost + 1] = ids[i]
  end
end
return lost
