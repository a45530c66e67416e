-- Remove tasks that are done.
--
-- include: attempts, lease
-- KEYS[1] leased    zset  task id -> lease expiry, ms
-- KEYS[2] tokens    hash  task id -> token of its lease, and a record of its attempts
-- KEYS[3] payloads  hash  task id -> opaque bytes
-- ARGV[1] ''   ARGV[2] token   ARGV[3] '1': some of them have a payload
-- ARGV[4..] id, appointment, attempt, ...
--
-- Returns {id, ...}: the tasks whose lease was lost.
--
-- A task whose lease was lost is removed, too, if it is leased for a later attempt of the same appointment: it
-- is done, and its present holder need not finish it. In every other case nothing is written without a valid token.

local ids, done, lost = column(4, 3), {}, {}
for n, kept in ipairs(redis.call('HMGET', tokens, unpack(ids))) do
  local appointment, attempt = ARGV[3 * n + 2], tonumber(ARGV[3 * n + 3])
  local is_done = proves(ARGV[2], kept)
  if not is_done and is_leased(kept) then
    local state = attempts_in(kept, '')
    is_done = state.appointment == appointment and state.attempts >= attempt
  end
  local which = is_done and done or lost
  which[#which + 1] = ids[n]
end
if #done > 0 then
  redis.call('ZREM', leased, unpack(done))
  redis.call('HDEL', tokens, unpack(done))
  if ARGV[3] == '1' then redis.call('HDEL', payloads, unpack(done)) end
end
return lost
