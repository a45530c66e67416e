-- Bury leased tasks, with the reason.
--
-- KEYS[1] leased   zset  task id -> lease expiry, ms
-- KEYS[2] dead     list  task ids, newest first
-- KEYS[3] letters  hash  task id -> why it is dead, JSON
-- KEYS[4] tokens   hash  task id -> token of its lease, and when the task was first due, ms
-- ARGV[1] now_ms ('' is the server's clock)   ARGV[2] token
-- ARGV[3..] id, letter (a JSON object; died_at_ms is added here), ...
--
-- Returns {id, ...}: the tasks whose lease is lost. No valid token, no write.
--
-- A task is in exactly one of scheduled, leased, dead. Its payload and counters stay where they
-- are for whoever looks. ZREM is the first write, so that a server whose memory is full lets
-- the rest pass.

local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
local lost = {}
for i = 3, #ARGV, 2 do
  local id, letter = ARGV[i], ARGV[i + 1]
  local kept = redis.call('HGET', KEYS[4], id)
  if kept and string.sub(kept, 1, 64) == ARGV[2] then
    redis.call('ZREM', KEYS[1], id)
    redis.call('HDEL', KEYS[4], id)
    redis.call('LPUSH', KEYS[2], id)
    redis.call('HSET', KEYS[3], id, string.format('%s,"died_at_ms":%.0f}', string.sub(letter, 1, -2), now))
  else
    lost[#lost + 1] = id
  end
end
return lost
