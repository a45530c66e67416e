-- Say which of these tasks break an invariant.
--
-- KEYS[1] scheduled  zset  task id -> due time, ms
-- KEYS[2] leased     zset  task id -> lease expiry, ms
-- KEYS[3] dead       zset  task id -> when it died, ms
-- KEYS[4] letters    hash  task id -> why it is dead
-- KEYS[5] tokens     hash  task id -> token of its lease, and a record of its attempts
-- ARGV[1] ''   ARGV[2..] id, ...
--
-- Returns {id, scheduled, leased, dead, held, letter, ...}, the flags 1 or 0, for each task that breaks an invariant:
--   a task is in exactly one of scheduled, leased, dead
--   a task is dead if and only if it has a letter
--   a task is leased if and only if its record has a token
--
-- Changes nothing.

local reply = {}

local function look_at(id)
  local is_scheduled = redis.call('ZSCORE', scheduled, id) and 1 or 0
  local is_leased = redis.call('ZSCORE', leased, id) and 1 or 0
  local is_dead = redis.call('ZSCORE', dead, id) and 1 or 0
  local kept = redis.call('HGET', tokens, id)
  local places = is_scheduled + is_leased + is_dead
  if places == 0 and not kept then return end -- it has ended since the caller read its id
  local is_held = kept and string.sub(kept, 1, 1) ~= '-' and 1 or 0
  local has_letter = redis.call('HEXISTS', letters, id)
  if places ~= 1 or is_leased ~= is_held or is_dead ~= has_letter then
    for _, value in ipairs({id, is_scheduled, is_leased, is_dead, is_held, has_letter}) do reply[#reply + 1] = value end
  end
end

for i = 2, #ARGV do look_at(ARGV[i]) end
return reply
