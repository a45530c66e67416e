-- Extend leases.
--
-- include: clock, attempts, lease
-- KEYS[1] leased  zset  task id -> lease expiry, ms
-- KEYS[2] tokens  hash  task id -> token of its lease, and a record of its attempts
-- ARGV[1] now_ms   ARGV[2] lease_ms   ARGV[3..] groups: token, how many tasks, id, ...
--
-- Returns {id, ...}: the tasks whose lease was lost. Without a valid token nothing is written.
--
-- The ZREM removes nothing, because no id is empty. A server whose memory is full refuses a ZADD only as
-- the first write of a script.

local lease, lost, first = tonumber(ARGV[2]), {}, 3
redis.call('ZREM', leased, '')
while first < #ARGV do
  local token, last = ARGV[first], first + 1 + ARGV[first + 1]
  local held, records = held_by(token, first + 2, last, lost)
  for i, id in ipairs(held) do
    redis.call('ZADD', leased, now + lease, id)
    local state = attempts_in(records[i], '0')
    if state.span ~= lease then
      state.span = lease
      redis.call('HSET', tokens, id, kept_as(token, state))
    end
  end
  first = last + 1
end
return lost
