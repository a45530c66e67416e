-- Take tasks off the schedule, or away from the worker that holds them.
--
-- KEYS[1] scheduled  zset  task id -> due time, ms
-- KEYS[2] leased     zset  task id -> lease expiry, ms
-- KEYS[3] letters    hash  task id -> why it is dead
-- KEYS[4] payloads   hash  task id -> opaque bytes
-- KEYS[5] tokens     hash  task id -> token of its lease, and a record of its attempts
-- ARGV[1] ''   ARGV[2..] id, ...
--
-- Returns for each id 'removed', 'cancelling' (a worker held it and may still do it), 'dead' or 'missing'.

local answers, removed = {}, {}
for i = 2, #ARGV do
  local id, answer = ARGV[i], 'missing'
  if redis.call('ZREM', scheduled, id) == 1 then
    answer = 'removed'
  elseif redis.call('ZREM', leased, id) == 1 then
    answer = 'cancelling'
  elseif redis.call('HEXISTS', letters, id) == 1 then
    answer = 'dead'
  end
  if answer ~= 'missing' and answer ~= 'dead' then removed[#removed + 1] = id end
  answers[#answers + 1] = answer
end
if #removed > 0 then
  redis.call('HDEL', payloads, unpack(removed))
  redis.call('HDEL', tokens, unpack(removed))
end
return answers
