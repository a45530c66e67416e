-- Whether the queue is paused. A caller that knows of a pause tells a server that has lost it, in a flush for
-- instance: nothing but resume ends a pause.

local function is_paused(known)
  if redis.call('EXISTS', paused) == 1 then return true end
  if known ~= '1' or redis.call('EXISTS', resumed) == 1 then return false end
  redis.call('ZREM', scheduled, '') -- so that the SET is not the first write: see claim.lua
  redis.call('SET', paused, '1')
  return true
end
