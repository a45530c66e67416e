-- Delete dead tasks for good.
--
-- KEYS[1] dead        list  task ids, newest first
-- KEYS[2] letters     hash  task id -> why it is dead
-- KEYS[3] payloads    hash  task id -> opaque bytes
-- KEYS[4] failures    hash  task id -> times it failed alone
-- KEYS[5] deliveries  hash  task id -> times its lease expired
-- KEYS[6] first_due   hash  task id -> when it was first due, ms, for tasks put back
-- ARGV[1..] id, ...
--
-- Returns {id, ...}: the tasks that were dead and are gone now.
--
-- A letter is what makes a task dead. The list is searched 1,000 entries deep from either end
-- and no further; an entry left behind has no letter, so readers skip it.

local purged = {}
for _, id in ipairs(ARGV) do
  if redis.call('HDEL', KEYS[2], id) == 1 then
    for k = 3, 6 do redis.call('HDEL', KEYS[k], id) end
    purged[#purged + 1] = id
  end
  if redis.call('LPOS', KEYS[1], id, 'RANK', -1, 'MAXLEN', 1000) then
    redis.call('LREM', KEYS[1], -1, id)
  elseif redis.call('LPOS', KEYS[1], id, 'MAXLEN', 1000) then
    redis.call('LREM', KEYS[1], 1, id)
  end
end
return purged
