-- Shortens leases that were given before the clock was set back, because their workers may be dead. Such a lease began
-- later than now, by the present clock.

local MOST_LATE = 100

local function shorten_lease(id)
  local state = attempts_in(redis.call('HGET', tokens, id), '0')
  if redis.call('ZSCORE', leased, id) - state.span > now then
    redis.call('ZADD', leased, now + state.span, id)
  end
end

-- A few in each call, and those that end last: leases that are long on purpose end before them.
local function shorten_late_leases(lease)
  local late = redis.call('ZREVRANGEBYSCORE', leased, '+inf', '(' .. whole(now + lease), 'LIMIT', 0, MOST_LATE)
  if #late > 0 then redis.call('ZREM', leased, '') end -- a full server refuses a ZADD as the first write
  for _, id in ipairs(late) do shorten_lease(id) end
end
