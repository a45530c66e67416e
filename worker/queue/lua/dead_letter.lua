-- Make leased tasks dead letters, or drop those that were cancelled in the meantime.
--
-- include: clock, attempts, lease, let_go
-- KEYS[1] leased    zset  task id -> lease expiry, ms
-- KEYS[2] dead      zset  task id -> when it died, ms
-- KEYS[3] letters   hash  task id -> why it is dead, JSON
-- KEYS[4] tokens    hash  task id -> token of its lease, and a record of its attempts
-- KEYS[5] payloads  hash  task id -> opaque bytes
-- ARGV[1] now_ms   ARGV[2] token
-- ARGV[3..] id, letter (a JSON object; died_at_ms is added here), ...
--
-- Returns {id, ...}: the tasks whose lease was lost. Without a valid token nothing is written.
--
-- A task is in exactly one of scheduled, leased, dead. Its payload and its record are kept for requeue.
-- The first write is a ZREM, because a server whose memory is full checks only the first.

local held, lost, at, kept = held_by(ARGV[2], column(3, 2))
for n, id in ipairs(held) do
  local letter = string.sub(ARGV[2 + 2 * at[n]], 1, -2)
  local state = attempts_in(kept[at[n]], '0')
  if let_go(id, state) then
    redis.call('HSET', tokens, id, kept_as(NOBODY, state))
    redis.call('ZADD', dead, now + since_now_us / 1000, id)
    redis.call('HSET', letters, id, letter .. ',"died_at_ms":' .. whole(now) .. '}')
  end
end
return lost
