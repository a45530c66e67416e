-- Look for tasks that break an invariant, among a sample of each place.
--
-- KEYS[1] scheduled  zset  task id -> due time, ms
-- KEYS[2] leased     zset  task id -> lease expiry, ms
-- KEYS[3] dead       zset  task id -> when it died, ms
-- KEYS[4] letters    hash  task id -> why it is dead
-- KEYS[5] tokens     hash  task id -> token of its lease, and a record of its attempts
-- ARGV[1] ''   ARGV[2] how many to look at in each place
--
-- Returns {id, scheduled, leased, dead, held, letter, ...}, the flags 1 or 0, for each task that breaks an invariant:
--   a task is in exactly one of scheduled, leased, dead
--   a task is dead if and only if it has a letter
--   a task is leased if and only if its record has a token
--
-- Changes nothing.

local limit, seen, reply = tonumber(ARGV[2]), {}, {}

local function look_at(id)
  if seen[id] then return end
  seen[id] = true
  local is_scheduled = redis.call('ZSCORE', scheduled, id) and 1 or 0
  local is_leased = redis.call('ZSCORE', leased, id) and 1 or 0
  local is_dead = redis.call('ZSCORE', dead, id) and 1 or 0
  local kept = redis.call('HGET', tokens, id)
  local is_held = kept and string.sub(kept, 1, 1) ~= '-' and 1 or 0
  local has_letter = redis.call('HEXISTS', letters, id)
  if is_scheduled + is_leased + is_dead ~= 1 or is_leased ~= is_held or is_dead ~= has_letter then
    for _, value in ipairs({id, is_scheduled, is_leased, is_dead, is_held, has_letter}) do reply[#reply + 1] = value end
  end
end

for _, id in ipairs(redis.call('ZRANGE', scheduled, 0, limit - 1)) do look_at(id) end
for _, id in ipairs(redis.call('ZRANGE', leased, 0, limit - 1)) do look_at(id) end
for _, id in ipairs(redis.call('ZREVRANGE', dead, 0, limit - 1)) do look_at(id) end
local records = redis.call('HSCAN', tokens, '0', 'COUNT', limit)[2]
for i = 1, math.min(#records, 2 * limit), 2 do look_at(records[i]) end
return reply
