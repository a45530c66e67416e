-- Extend leases.
--
-- include: clock, attempts, lease
-- KEYS[1] leased  zset  task id -> lease expiry, ms
-- KEYS[2] tokens  hash  task id -> token of its lease, and a record of its attempts
-- ARGV[1] now_ms   ARGV[2] token   ARGV[3] lease_ms   ARGV[4..] id, ...
--
-- Returns {id, ...}: the tasks whose lease was lost. Without a valid token nothing is written.
--
-- The ZREM removes nothing, because no id is empty. A server whose memory is full refuses a ZADD only as
-- the first write of a script.

local held, lost, at, kept = held_by(ARGV[2], {unpack(ARGV, 4)})
local lease = tonumber(ARGV[3])
redis.call('ZREM', leased, '')
for n, id in ipairs(held) do
  redis.call('ZADD', leased, now + lease, id)
  local state = attempts_in(kept[at[n]], '0')
  if state.span ~= lease then
    state.span = lease
    redis.call('HSET', tokens, id, kept_as(ARGV[2], state))
  end
end
return lost
