-- Claim expired leases first, then tasks that are due.
--
-- KEYS[1] scheduled   zset    task id -> due time, ms
-- KEYS[2] leased      zset    task id -> lease expiry, ms
-- KEYS[3] payloads    hash    task id -> opaque bytes
-- KEYS[4] failures    hash    task id -> times it failed alone
-- KEYS[5] deliveries  hash    task id -> times its lease expired
-- KEYS[6] first_due   hash    task id -> when it was first due, ms, for tasks put back
-- KEYS[7] tokens      hash    task id -> token of its lease, and when the task was first due, ms
-- KEYS[8] paused      string  present while the queue is paused
-- ARGV[1] now_ms ('' is the server's clock)   ARGV[2] limit   ARGV[3] lease_ms   ARGV[4] token
--
-- Returns {paused, next_in_us (-1: nothing waits), id, payload, failures, deliveries, first_due, ...}
--
-- Never early: a task is due when its score is not after now, and now is rounded down.
-- A token is 64 bytes, so that with the time after it a value is longer than a server packs into
-- a list, which it would search from the start for each of a batch.
-- ZREM is the first write, so that a server whose memory is full lets the rest pass.

if redis.call('EXISTS', KEYS[8]) == 1 then return {1, -1} end
local now = tonumber(ARGV[1])
local since_now_us = 0 -- so that whoever waits does not wait for the rest of this millisecond too
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
  since_now_us = time[2] % 1000
end
local limit, expiry, token = tonumber(ARGV[2]), now + tonumber(ARGV[3]), ARGV[4]

local ids = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, limit)
local first_due = {}
if #ids > 0 then
  redis.call('ZREM', KEYS[2], unpack(ids))
  for i, kept in ipairs(redis.call('HMGET', KEYS[7], unpack(ids))) do
    first_due[i] = kept and string.match(kept, '^%d+$', 65) or now
    redis.call('HINCRBY', KEYS[5], ids[i], 1)
  end
end
if #ids < limit then
  local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'WITHSCORES', 'LIMIT', 0, limit - #ids)
  if #due > 0 then
    local fresh = {}
    for i = 1, #due, 2 do fresh[#fresh + 1] = due[i] end
    redis.call('ZREM', KEYS[1], unpack(fresh))
    for i, before in ipairs(redis.call('HMGET', KEYS[6], unpack(fresh))) do
      ids[#ids + 1] = fresh[i]
      -- Others may write any score.
      first_due[#ids] = before or string.format('%.0f', math.max(0, math.floor(tonumber(due[2 * i]))))
    end
  end
end

local reply = {0, -1}
if #ids > 0 then
  local payloads = redis.call('HMGET', KEYS[3], unpack(ids))
  local failures = redis.call('HMGET', KEYS[4], unpack(ids))
  local deliveries = redis.call('HMGET', KEYS[5], unpack(ids))
  local leases, tokens = {}, {}
  for i, id in ipairs(ids) do
    leases[2 * i - 1], leases[2 * i] = expiry, id
    tokens[2 * i - 1], tokens[2 * i] = id, token .. first_due[i]
    local at = 5 * i - 2
    reply[at], reply[at + 1], reply[at + 2] = id, payloads[i], failures[i]
    reply[at + 3], reply[at + 4] = deliveries[i], first_due[i]
  end
  redis.call('ZADD', KEYS[2], unpack(leases))
  redis.call('HSET', KEYS[7], unpack(tokens))
end

for k = 1, 2 do
  local head = tonumber(redis.call('ZRANGE', KEYS[k], 0, 0, 'WITHSCORES')[2])
  if head then
    local wait = math.max(0, (head - now) * 1000 - since_now_us)
    if reply[2] == -1 or wait < reply[2] then reply[2] = wait end
  end
end
return reply
