-- Removes a dead task's letter; returns whether it was dead. The list is searched 1,000 entries deep from
-- either end and no further; an entry left behind has no letter, so readers skip it.

local function remove_letter(id)
  if redis.call('LPOS', dead, id, 'RANK', -1, 'MAXLEN', 1000) then
    redis.call('LREM', dead, -1, id)
  elseif redis.call('LPOS', dead, id, 'MAXLEN', 1000) then
    redis.call('LREM', dead, 1, id)
  end
  return redis.call('HDEL', letters, id) == 1
end
