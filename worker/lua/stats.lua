-- Count what is where.
--
-- KEYS[1] scheduled  zset    task id -> due time, ms
-- KEYS[2] leased     zset    task id -> lease expiry, ms
-- KEYS[3] letters    hash    task id -> why it is dead
-- KEYS[4] paused     string  present while the queue is paused
-- ARGV[1] now_ms ('' is the server's clock)
--
-- Returns {scheduled, due, due_within_minute, leased, dead, paused, next_due_in_ms}, the last
-- negative when the oldest task is overdue and false when none is scheduled.

local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
local head = tonumber(redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')[2])
return {
  redis.call('ZCARD', KEYS[1]),
  redis.call('ZCOUNT', KEYS[1], '-inf', now),
  redis.call('ZCOUNT', KEYS[1], '-inf', now + 60000),
  redis.call('ZCARD', KEYS[2]),
  redis.call('HLEN', KEYS[3]),
  redis.call('EXISTS', KEYS[4]),
  head and (head - now) or false,
}
