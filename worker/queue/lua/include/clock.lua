-- The server's time: now in ms, rounded down, and since_now_us, the microseconds since then.
-- ARGV[1] is '', 0 where no time is needed, or a time that a test passes.

local now, since_now_us = tonumber(ARGV[1]), 0
if not now then
  local time = redis.call('TIME')
  now, since_now_us = time[1] * 1000 + math.floor(time[2] / 1000), time[2] % 1000
end
