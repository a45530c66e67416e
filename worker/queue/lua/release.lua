-- Put leased tasks back as they were, with the same due time; nothing is counted.
--
-- include: clock, attempts, lease, let_go, wake
-- KEYS[1] leased     zset  task id -> lease expiry, ms
-- KEYS[2] scheduled  zset  task id -> due time, ms
-- KEYS[3] tokens     hash  task id -> token of its lease, and a record of its attempts
-- KEYS[4] payloads   hash  task id -> opaque bytes
-- KEYS[5] waiting    zset  claimer -> when it claims next, ms
-- ARGV[1] now_ms   ARGV[2] wake channel   ARGV[3] token   ARGV[4..] id, ...
--
-- Returns {id, ...}: the tasks whose lease was lost. Without a valid token nothing is written.
--
-- A task is in exactly one of scheduled, leased, dead, unless it was cancelled in the meantime: then it is
-- dropped. The first write is a ZREM, because a server whose memory is full checks only the first.

local held, lost, at, kept = held_by(ARGV[3], {unpack(ARGV, 4)})
for n, id in ipairs(held) do
  local state = attempts_in(kept[at[n]], '0')
  if let_go(id, state) then
    state.span = 0
    redis.call('ZADD', scheduled, state.due, id)
    redis.call('HSET', tokens, id, kept_as(NOBODY, state))
  end
end
if #held > 0 then wake(next_due() or now) end
return lost
