-- A task whose lease expired may have killed its worker. Such suspects are claimed a few at a time, and alone from the
-- second time on: until that one has lived for a while, no other such suspect begins; it is tried again a little later. So a
-- task that kills its worker is isolated from the others.

local ALONE_MS = 100
local MOST_SUSPECTS = 100

-- Whether the suspect that was claimed alone last may be about to kill its worker, and with it every task that the worker
-- holds. It is not if its lease was extended, which renewal.py does after a third of it: once at two deliveries, as two
-- deaths may be no task's fault, and once more for each further one.
local function lone_suspect_is_new()
  local other = redis.call('HGET', control, 'alone')
  local ends = other and tonumber(redis.call('ZSCORE', leased, other) or nil)
  if not ends or ends <= now then return false end
  local state = attempts_in(redis.call('HGET', tokens, other), '0')
  return state.deliveries > 1 and ends < state.claimed + (0.7 + 0.3 * state.deliveries) * state.span
end

-- Makes it wait for a while. The ZREM goes first: a server whose memory is full refuses a ZADD as the first write.
local function put_off(zset, id)
  redis.call('ZREM', zset, id)
  redis.call('ZADD', zset, now + ALONE_MS, id)
end

-- Returns suspects that expired for the first time, in order, or one that must be alone: the one that was claimed
-- last, because a task that kills its worker soon was claimed after those that have been running for longer.
local function suspects(few, has_payloads)
  local expired = redis.call('ZRANGEBYSCORE', leased, '-inf', now, 'LIMIT', 0, MOST_SUSPECTS)
  local found, last, ids, states = {}, nil, {}, {}
  for i, kept in ipairs(redis.call('HMGET', tokens, unpack(expired))) do
    local state = attempts_in(kept, whole(now))
    found[i] = state
    if state.deliveries > 0 and (not last or state.claimed > found[last].claimed) then last = i end
  end
  local must_wait = last and lone_suspect_is_new()
  for i, id in ipairs(fitting({unpack(expired, 1, few)}, has_payloads)) do
    local state = found[i]
    local is_alone = state.deliveries > 0
    if is_alone and must_wait and #ids == 0 then
      put_off(leased, id)
    elseif #ids == 0 or not is_alone then
      if is_alone then id, state = expired[last], found[last] end
      state.deliveries, state.attempts = state.deliveries + 1, state.attempts + 1
      ids[#ids + 1], states[#states + 1] = id, state
      if is_alone then break end
    end
  end
  return ids, states
end
