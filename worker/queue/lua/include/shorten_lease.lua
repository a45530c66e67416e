-- Shortens a lease that was given before the clock was set back, because its worker may be dead. Such a lease began later
-- than now, by the present clock. Returns whether it was one.
local function shorten_lease(id)
  local state = attempts_in(redis.call('HGET', tokens, id), '0')
  local began_later = redis.call('ZSCORE', leased, id) - state.span > now
  if began_later then redis.call('ZADD', leased, now + state.span, id) end
  return began_later
end
