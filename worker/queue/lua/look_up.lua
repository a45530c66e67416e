-- Say where tasks are.
--
-- include: clock, attempts
-- KEYS[1] scheduled  zset  task id -> due time, ms
-- KEYS[2] leased     zset  task id -> lease expiry, ms
-- KEYS[3] letters    hash  task id -> why it is dead
-- KEYS[4] tokens     hash  task id -> token of its lease, and a record of its attempts
-- ARGV[1] now_ms   ARGV[2..] id, ...
--
-- Returns for each id place, in_ms, failures, deliveries, attempts, held_ms, lease, error: in_ms is the time until it is
-- due or its lease ends, false for a dead task; held_ms is how long it has been leased, and lease the beginning of its
-- token, '' if it is not; place is false if the queue does not have the task.
--
-- Changes nothing.

local reply = {}
for i = 2, #ARGV do
  local id = ARGV[i]
  local due, expiry = redis.call('ZSCORE', scheduled, id), redis.call('ZSCORE', leased, id)
  local place = due and 'scheduled' or expiry and 'leased' or redis.call('HEXISTS', letters, id) == 1 and 'dead'
  local kept = redis.call('HGET', tokens, id)
  local state = attempts_in(kept, '0')
  local at, n = tonumber(due or expiry), #reply
  reply[n + 1], reply[n + 2] = place, at and (at - now) or false
  reply[n + 3], reply[n + 4], reply[n + 5] = state.failures, state.deliveries, state.attempts
  reply[n + 6], reply[n + 7] = expiry and now - state.claimed or 0, expiry and string.sub(kept, 1, 12) or ''
  reply[n + 8] = state.error
end
return reply
