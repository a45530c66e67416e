-- Record that a worker is alive, and forget some of those that have been silent for long.
--
-- include: clock
-- KEYS[1] heard    zset  worker id -> time of its last beat, ms
-- KEYS[2] workers  hash  worker id -> details, JSON
-- ARGV[1] now_ms   ARGV[2] worker id   ARGV[3] details, JSON   ARGV[4] forget_ms
--
-- Returns {count, place}: how many workers were heard from within the last minute, and this one's place among them, from 0:
-- by the ends of their ids, which are random, so that those of one host do not follow each other.
--
-- Each forgets more than it adds, and of the other workers reads only the ids. The first write is a ZREM, because a server
-- whose memory is full checks only the first.

local FORGOTTEN = 10
local silent_since = now - tonumber(ARGV[4])
local silent = redis.call('ZRANGEBYSCORE', heard, '-inf', silent_since, 'LIMIT', 0, FORGOTTEN)
redis.call('ZREM', heard, '', unpack(silent))
redis.call('HDEL', workers, '', unpack(silent))
redis.call('HSET', workers, ARGV[2], ARGV[3])
redis.call('ZADD', heard, now, ARGV[2])
local alive, place = redis.call('ZRANGEBYSCORE', heard, now - 60000, now), 0
for _, id in ipairs(alive) do
  if string.reverse(id) < string.reverse(ARGV[2]) then place = place + 1 end
end
return {#alive, place}
