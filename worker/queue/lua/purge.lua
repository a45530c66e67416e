-- Delete dead tasks for good.
--
-- include: letters
-- KEYS[1] dead      zset  task id -> when it died, ms
-- KEYS[2] letters   hash  task id -> why it is dead
-- KEYS[3] payloads  hash  task id -> opaque bytes
-- KEYS[4] tokens    hash  task id -> token of its lease, and a record of its attempts
-- ARGV[1] ''   ARGV[2..] id, ...
--
-- Returns {id, ...}: the tasks that were dead and are gone now.

local purged = {}
for i = 2, #ARGV do
  local id = ARGV[i]
  if remove_letter(id) then
    redis.call('HDEL', payloads, id)
    redis.call('HDEL', tokens, id)
    purged[#purged + 1] = id
  end
end
return purged
