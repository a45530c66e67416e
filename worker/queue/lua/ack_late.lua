-- Remove tasks that are done although their lease was lost, if another worker holds them for the same appointment.
--
-- include: attempts, lease
-- KEYS[1] leased    zset  task id -> lease expiry, ms
-- KEYS[2] tokens    hash  task id -> token of its lease, and a record of its attempts
-- KEYS[3] payloads  hash  task id -> opaque bytes
-- ARGV[1] ''   ARGV[2..] id, appointment, attempt, ...
--
-- Returns {id, ...}: the tasks that are not leased for a later attempt of the same appointment. For these
-- nothing is written: they are settled already, were put back, or have another appointment.
--
-- What a worker has done need not be done again by the present holder, which finds its lease gone.

local lost = {}
for i = 2, #ARGV, 3 do
  local id, kept = ARGV[i], redis.call('HGET', tokens, ARGV[i])
  local state = attempts_in(kept, '')
  if is_leased(kept) and state.appointment == ARGV[i + 1] and state.attempts >= tonumber(ARGV[i + 2]) then
    redis.call('ZREM', leased, id)
    redis.call('HDEL', tokens, id)
    redis.call('HDEL', payloads, id)
  else
    lost[#lost + 1] = id
  end
end
return lost
