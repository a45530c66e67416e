-- Record that a worker is alive, and remove workers that have been silent for long.
--
-- include: clock
-- KEYS[1] workers  hash  worker id -> time of its last beat in ms, a space, details
-- ARGV[1] now_ms   ARGV[2] worker id   ARGV[3] details, JSON   ARGV[4] forget_ms
--
-- Returns nothing.

redis.call('HDEL', workers, '') -- removes nothing; a full server refuses an HSET only as the first write
redis.call('HSET', workers, ARGV[2], string.format('%.0f ', now) .. ARGV[3])
local known = redis.call('HGETALL', workers)
for i = 1, #known, 2 do
  local heard = tonumber(string.match(known[i + 1], '^%d+'))
  if not heard or heard < now - tonumber(ARGV[4]) then redis.call('HDEL', workers, known[i]) end
end
