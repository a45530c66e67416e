-- Shortens a lease that was given before the clock was set back, because its worker may be dead. Such a lease began later
-- than now, by the present clock.
local function shorten_lease(id)
  local state = attempts_in(redis.call('HGET', tokens, id), '0')
  if redis.call('ZSCORE', leased, id) - state.span > now then
    redis.call('ZADD', leased, now + state.span, id)
  end
end
