-- Say that a worker lives, and forget those that have not said so for long.
--
-- include: clock
-- KEYS[1] workers  hash  worker id -> when it was last heard of, ms, a space, what it says of itself
-- ARGV[1] now_ms   ARGV[2] worker id   ARGV[3] what it says of itself, JSON   ARGV[4] forget_ms
--
-- Returns nothing.

redis.call('HDEL', workers, '')
redis.call('HSET', workers, ARGV[2], string.format('%.0f ', now) .. ARGV[3])
local known = redis.call('HGETALL', workers)
for i = 1, #known, 2 do
  local heard = tonumber(string.match(known[i + 1], '^%d+'))
  if not heard or heard < now - tonumber(ARGV[4]) then redis.call('HDEL', workers, known[i]) end
end
