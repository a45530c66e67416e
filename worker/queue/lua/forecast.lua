-- Count the tasks that become due in each of the next intervals.
--
-- include: clock
-- KEYS[1] scheduled  zset  task id -> due time, ms
-- ARGV[1] now_ms   ARGV[2] how many intervals   ARGV[3] interval_ms
--
-- Returns {count, ...}. The first interval begins after now, so tasks that are already due are not counted.
--
-- A count takes time logarithmic in the number of tasks: no task is read.

local counts, interval = {}, tonumber(ARGV[3])
for i = 1, tonumber(ARGV[2]) do
  local from, to = now + (i - 1) * interval, now + i * interval
  counts[i] = redis.call('ZCOUNT', scheduled, string.format('(%.0f', from), string.format('%.0f', to))
end
return counts
