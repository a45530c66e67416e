-- Put back the tasks that the application's records say are waiting and that Redis lost.
--
-- KEYS[1] scheduled  zset    task id -> due time, ms
-- KEYS[2] leased     zset    task id -> lease expiry, ms
-- KEYS[3] letters    hash    task id -> why it is dead
-- KEYS[4] first_due  hash    task id -> when it was first due, ms, for tasks put back
-- KEYS[5] paused     string  present while the queue is paused
-- ARGV[1] now_ms ('' is the server's clock)   ARGV[2] wake channel
-- ARGV[3..] id, delay_ms, ...
--
-- Returns {paused, restored, pending}; pending counts those that are leased, or due already.
--
-- Leased and dead tasks stay as they are, and so does one that was claimed before: its handler
-- or its backoff said when. Any other scheduled one is only ever brought forward: it stood too
-- late because this server's clock is behind. A paused queue is not touched.

if redis.call('EXISTS', KEYS[5]) == 1 then return {1, 0, 0} end
local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end

local function head()
  return tonumber(redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')[2])
end

local head_before = head()
local restored, pending = 0, 0
for i = 3, #ARGV, 2 do
  local id, due = ARGV[i], now + tonumber(ARGV[i + 1])
  local scheduled = redis.call('ZSCORE', KEYS[1], id)
  if scheduled then
    scheduled = tonumber(scheduled)
    if scheduled <= now then
      pending = pending + 1
    elseif due < scheduled and redis.call('HEXISTS', KEYS[4], id) == 0 then
      redis.call('ZADD', KEYS[1], due, id)
    end
  elseif redis.call('ZSCORE', KEYS[2], id) then
    pending = pending + 1
  elseif redis.call('HEXISTS', KEYS[3], id) == 0 then
    redis.call('ZADD', KEYS[1], due, id)
    restored = restored + 1
  end
end

if restored == 0 then
  -- Removes nothing, for no id is empty. But a server that refuses writes, and so every claim,
  -- has to refuse this too: read-only, short of replicas, or unable to write to its disk, it
  -- would else say of what is due that the claims are about to take it.
  redis.call('ZREM', KEYS[1], '')
end

local head_after = head()
if head_after and (not head_before or head_after < head_before) then
  redis.call('PUBLISH', ARGV[2], '')
end
return {0, restored, pending}
