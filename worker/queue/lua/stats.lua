-- Count the tasks in each place.
--
-- include: clock
-- KEYS[1] scheduled  zset    task id -> due time, ms
-- KEYS[2] leased     zset    task id -> lease expiry, ms
-- KEYS[3] dead       list    task ids, newest first
-- KEYS[4] letters    hash    task id -> why it is dead, JSON
-- KEYS[5] paused     string  present while the queue is paused
-- ARGV[1] now_ms
--
-- Returns {scheduled, due, due_within_minute, leased, dead, paused, oldest_dead_age_ms, next_due_in_ms},
-- the last negative when the oldest task is overdue and false when none is scheduled.
--
-- The oldest letter is searched for only among the 100 oldest entries of the list, some of which may have
-- no letter: see include/letters.lua. Without a letter the age is 0.

local oldest_dead_age = 0
local oldest = redis.call('LRANGE', dead, -100, -1)
for n = #oldest, 1, -1 do
  local letter = redis.call('HGET', letters, oldest[n])
  if letter then
    oldest_dead_age = now - (tonumber(string.match(letter, '"died_at_ms":(%d+)}$')) or now)
    break
  end
end
local head = tonumber(redis.call('ZRANGE', scheduled, 0, 0, 'WITHSCORES')[2])
return {
  redis.call('ZCARD', scheduled),
  redis.call('ZCOUNT', scheduled, '-inf', now),
  redis.call('ZCOUNT', scheduled, '-inf', now + 60000),
  redis.call('ZCARD', leased),
  redis.call('HLEN', letters),
  redis.call('EXISTS', paused),
  oldest_dead_age,
  head and (head - now) or false,
}
