-- Whether the queue is paused. If the server has lost the pause, in a flush for instance, a caller that knows
-- of it renews it: only resume ends a pause. `exists` says whether it is there, 1 or 0, if the script has asked.

local function is_paused(known, exists)
  if (exists or redis.call('EXISTS', paused)) == 1 then return true end
  if known ~= '1' or redis.call('EXISTS', resumed) == 1 then return false end
  redis.call('ZREM', scheduled, '') -- a full server refuses a SET as the first write: see claim.lua
  redis.call('SET', paused, '1')
  return true
end
