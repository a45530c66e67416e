-- Put leased tasks back on the schedule, later.
--
-- KEYS[1] leased     zset  task id -> lease expiry, ms
-- KEYS[2] scheduled  zset  task id -> due time, ms
-- KEYS[3] tokens     hash  task id -> token of its lease, and when the task was first due, ms
-- KEYS[4] failures   hash  task id -> times it failed alone
-- KEYS[5] first_due  hash  task id -> when it was first due, ms, for tasks put back
-- ARGV[1] now_ms ('' is the server's clock)   ARGV[2] wake channel   ARGV[3] token
-- ARGV[4..] id, delay_ms, failed ('1': count a failure; '': a new appointment), ...
--
-- Returns {id, ...}: the tasks whose lease is lost. No valid token, no write.
--
-- A task is in exactly one of scheduled, leased, dead. ZREM is the first write, so that a
-- server whose memory is full lets the rest pass.

local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end

local function head()
  return tonumber(redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')[2])
end

local head_before = head()
local lost = {}
for i = 4, #ARGV, 3 do
  local id, delay, failed = ARGV[i], tonumber(ARGV[i + 1]), ARGV[i + 2] == '1'
  local kept = redis.call('HGET', KEYS[3], id)
  if kept and string.sub(kept, 1, 64) == ARGV[3] then
    redis.call('ZREM', KEYS[1], id)
    redis.call('HDEL', KEYS[3], id)
    redis.call('ZADD', KEYS[2], now + delay, id)
    redis.call('HSET', KEYS[5], id, failed and string.sub(kept, 65) or now + delay)
    if failed then redis.call('HINCRBY', KEYS[4], id, 1) end
  else
    lost[#lost + 1] = id
  end
end

local head_after = head()
if head_after and (not head_before or head_after < head_before) then
  redis.call('PUBLISH', ARGV[2], '')
end
return lost
