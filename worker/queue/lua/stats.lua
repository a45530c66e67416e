-- Count the tasks in each place.
--
-- include: clock, due
-- KEYS[1] scheduled  zset    task id -> due time, ms
-- KEYS[2] leased     zset    task id -> lease expiry, ms
-- KEYS[3] dead       zset    task id -> when it died, ms
-- KEYS[4] control    hash    paused: present while the queue is
-- ARGV[1] now_ms
--
-- Returns {scheduled, due, due_within_minute, leased, dead, paused, oldest_dead_age_ms, next_due_in_ms},
-- the last negative when the oldest task is overdue and false when none is scheduled.

local oldest_dead = tonumber(redis.call('ZRANGE', dead, 0, 0, 'WITHSCORES')[2])
local next = next_due()
return {
  redis.call('ZCARD', scheduled),
  redis.call('ZCOUNT', scheduled, '-inf', now),
  redis.call('ZCOUNT', scheduled, '-inf', now + 60000),
  redis.call('ZCARD', leased),
  redis.call('ZCARD', dead),
  redis.call('HEXISTS', control, 'paused'),
  oldest_dead and now - math.floor(oldest_dead) or 0,
  next and (next - now) or false,
}
