-- Put dead tasks back on the schedule, due now, with the same appointment and their counts reset.
--
-- include: clock, attempts, letters, due, wake
-- KEYS[1] dead       zset  task id -> when it died, ms
-- KEYS[2] letters    hash  task id -> why it is dead
-- KEYS[3] scheduled  zset  task id -> due time, ms
-- KEYS[4] tokens     hash  task id -> token of its lease, and a record of its attempts
-- KEYS[5] channel    channel of messages for those who wait
-- ARGV[1] now_ms   ARGV[2..] id, ...
--
-- Returns {id, ...}: the tasks that were dead and are scheduled now.

local requeued = {}
for i = 2, #ARGV do
  local id = ARGV[i]
  if remove_letter(id) then
    local before = attempts_in(redis.call('HGET', tokens, id), whole(now))
    local state = attempts_in(nil, whole(now))
    state.appointment = before.appointment
    redis.call('ZADD', scheduled, now, id)
    redis.call('HSET', tokens, id, kept_as(NOBODY, state))
    requeued[#requeued + 1] = id
  end
end
if #requeued > 0 then wake(now) end
return requeued
