-- Take tasks off the schedule.
--
-- KEYS[1] scheduled   zset  task id -> due time, ms
-- KEYS[2] leased      zset  task id -> lease expiry, ms
-- KEYS[3] payloads    hash  task id -> opaque bytes
-- KEYS[4] failures    hash  task id -> times it failed alone
-- KEYS[5] deliveries  hash  task id -> times its lease expired
-- KEYS[6] first_due   hash  task id -> when it was first due, ms, for tasks put back
-- ARGV[1..] id, ...
--
-- Returns for each 'removed', 'leased' (a worker has it: nothing is changed) or 'missing'.

local answers, removed = {}, {}
for i, id in ipairs(ARGV) do
  if redis.call('ZREM', KEYS[1], id) == 1 then
    answers[i] = 'removed'
    removed[#removed + 1] = id
  else
    answers[i] = redis.call('ZSCORE', KEYS[2], id) and 'leased' or 'missing'
  end
end
if #removed > 0 then
  for k = 3, 6 do redis.call('HDEL', KEYS[k], unpack(removed)) end
end
return answers
