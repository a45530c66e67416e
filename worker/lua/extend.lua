-- Hold leased tasks for longer.
--
-- include: clock, lease
-- KEYS[1] leased  zset  task id -> lease expiry, ms
-- KEYS[2] tokens  hash  task id -> token of its lease, and what its attempts came to
-- ARGV[1] now_ms   ARGV[2] token   ARGV[3] lease_ms   ARGV[4..] id, ...
--
-- Returns {id, ...}: the tasks whose lease is lost. No valid token, no write.
--
-- The ZREM removes nothing, because no id is empty. It is there because a server whose memory is
-- full refuses a ZADD only if it is the first write of a script.

local held, lost = held_by(ARGV[2], {unpack(ARGV, 4)})
redis.call('ZREM', leased, '')
for _, id in ipairs(held) do redis.call('ZADD', leased, now + tonumber(ARGV[3]), id) end
return lost
