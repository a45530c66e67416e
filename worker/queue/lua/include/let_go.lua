-- Ends the lease of a task. Returns whether the task is kept: if it was cancelled in the meantime, it is dropped.

local function let_go(id, state)
  redis.call('ZREM', leased, id)
  if not is_cancelled(state) then return true end
  redis.call('HDEL', tokens, id)
  redis.call('HDEL', payloads, id)
  return false
end
