-- When the next task is due, ms; nil if none is scheduled.
local function next_due()
  return tonumber(redis.call('ZRANGE', scheduled, 0, 0, 'WITHSCORES')[2])
end

local function us_until(ms) return math.max(0, (ms - now) * 1000 - since_now_us) end
