-- Take tasks off the schedule.
--
-- include: attempts
-- KEYS[1] scheduled  zset  task id -> due time, ms
-- KEYS[2] leased     zset  task id -> lease expiry, ms
-- KEYS[3] letters    hash  task id -> why it is dead
-- KEYS[4] payloads   hash  task id -> opaque bytes
-- KEYS[5] tokens     hash  task id -> token of its lease, and a record of its attempts
-- ARGV[1] ''   ARGV[2..] id, ...
--
-- Returns for each id 'removed', 'cancelling' (a worker holds it; it is not put back), 'dead' or 'missing'.

local answers, removed = {}, {}
for i = 2, #ARGV do
  local id, answer = ARGV[i], 'missing'
  if redis.call('ZREM', scheduled, id) == 1 then
    answer = 'removed'
    removed[#removed + 1] = id
  elseif redis.call('ZSCORE', leased, id) then
    answer = 'cancelling'
    local kept = redis.call('HGET', tokens, id) or NOBODY
    local state = attempts_in(kept, 0)
    if not is_cancelled(state) then state.notes = state.notes .. ' cancelled' end
    redis.call('HSET', tokens, id, kept_as(string.sub(kept, 1, 64), state))
  elseif redis.call('HEXISTS', letters, id) == 1 then
    answer = 'dead'
  end
  answers[#answers + 1] = answer
end
if #removed > 0 then
  redis.call('HDEL', payloads, unpack(removed))
  redis.call('HDEL', tokens, unpack(removed))
end
return answers
