-- Removes a dead task's letter; returns whether the task was dead. Only the first and the last 1,000 entries
-- of the list are searched. An entry that is left behind has no letter, so readers skip it.

local function remove_letter(id)
  if redis.call('LPOS', dead, id, 'RANK', -1, 'MAXLEN', 1000) then
    redis.call('LREM', dead, -1, id)
  elseif redis.call('LPOS', dead, id, 'MAXLEN', 1000) then
    redis.call('LREM', dead, 1, id)
  end
  return redis.call('HDEL', letters, id) == 1
end
