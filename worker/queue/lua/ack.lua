-- Remove tasks that are done.
--
-- include: lease
-- KEYS[1] leased    zset  task id -> lease expiry, ms
-- KEYS[2] tokens    hash  task id -> token of its lease, and a record of its attempts
-- KEYS[3] payloads  hash  task id -> opaque bytes
-- ARGV[1] ''   ARGV[2] token   ARGV[3] '1': some of them have a payload   ARGV[4..] id, ...
--
-- Returns {id, ...}: the tasks whose lease was lost. Without a valid token nothing is written.

local held, lost = held_by(ARGV[2], {unpack(ARGV, 4)})
if #held > 0 then
  redis.call('ZREM', leased, unpack(held))
  redis.call('HDEL', tokens, unpack(held))
  if ARGV[3] == '1' then redis.call('HDEL', payloads, unpack(held)) end
end
return lost
