-- Put dead tasks back on the schedule, due now, their counts reset.
--
-- KEYS[1] dead        list  task ids, newest first
-- KEYS[2] letters     hash  task id -> why it is dead
-- KEYS[3] scheduled   zset  task id -> due time, ms
-- KEYS[4] failures    hash  task id -> times it failed alone
-- KEYS[5] deliveries  hash  task id -> times its lease expired
-- KEYS[6] first_due   hash  task id -> when it was first due, ms, for tasks put back
-- ARGV[1] now_ms ('' is the server's clock)   ARGV[2] wake channel   ARGV[3..] id, ...
--
-- Returns {id, ...}: the tasks that were dead and are scheduled now.
--
-- A letter is what makes a task dead. The list is searched 1,000 entries deep from either end
-- and no further; an entry left behind has no letter, so readers skip it.

local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
local requeued = {}
for i = 3, #ARGV do
  local id = ARGV[i]
  if redis.call('HDEL', KEYS[2], id) == 1 then
    for k = 4, 6 do redis.call('HDEL', KEYS[k], id) end
    redis.call('ZADD', KEYS[3], now, id)
    requeued[#requeued + 1] = id
  end
  if redis.call('LPOS', KEYS[1], id, 'RANK', -1, 'MAXLEN', 1000) then
    redis.call('LREM', KEYS[1], -1, id)
  elseif redis.call('LPOS', KEYS[1], id, 'MAXLEN', 1000) then
    redis.call('LREM', KEYS[1], 1, id)
  end
end
if #requeued > 0 then redis.call('PUBLISH', ARGV[2], '') end
return requeued
