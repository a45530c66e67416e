-- Removes a dead task's letter; returns whether the task was dead.

local function remove_letter(id)
  redis.call('ZREM', dead, id)
  return redis.call('HDEL', letters, id) == 1
end
