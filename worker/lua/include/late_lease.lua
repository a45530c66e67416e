-- Ends a lease sooner that was given before the clock was set back: its worker may be dead. A lease that
-- began after now was.

local function shorten_lease(id)
  local state = attempts_in(redis.call('HGET', tokens, id), '0')
  if redis.call('ZSCORE', leased, id) - state.span > now then
    redis.call('ZADD', leased, now + state.span, id)
  end
end
