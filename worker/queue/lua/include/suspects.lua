-- A task of which a worker may have died is a suspect. Those of one death are handled few at a time, and of more alone: until
-- such a one has lived for a while no other begins, but is tried again a little later. So one that kills is isolated.

local ALONE_MS = 100

-- Whether the suspect that was claimed alone last may be about to kill its worker, and with it every task that the worker
-- holds. It is not if its lease was extended, which renewal.py does after a third of it: once at two deliveries, as two
-- deaths may be no task's fault, and once more for each further one.
local function lone_suspect_is_new()
  local other = redis.call('HGET', control, 'alone')
  local ends = other and tonumber(redis.call('ZSCORE', leased, other) or nil)
  if not ends or ends <= now then return false end
  local state = attempts_in(redis.call('HGET', tokens, other), '0')
  if state.claimed > now then return false end -- before the clock was set back
  return state.deliveries > 1 and ends < state.claimed + (0.7 + 0.3 * state.deliveries) * state.span
end

-- Makes it wait for a while. The ZREM goes first: a server whose memory is full refuses a ZADD as the first write.
local function put_off(zset, id)
  redis.call('ZREM', zset, id)
  redis.call('ZADD', zset, now + ALONE_MS, id)
end
