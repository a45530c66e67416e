-- Put tasks whose lease has ended back on the schedule, in front of the others, and count a delivery for each: their worker
-- died, froze or was cut off. Shorten leases that were given before the clock was set back.
--
-- include: clock, attempts, late_lease, due, suspects
-- KEYS[1] leased     zset    task id -> lease expiry, ms
-- KEYS[2] scheduled  zset    task id -> due time, ms
-- KEYS[3] tokens     hash    task id -> token of its lease, and a record of its attempts
-- KEYS[4] control    hash    alone: id of the suspect that was last claimed alone
-- ARGV[1] now_ms   ARGV[2] limit of the claim that follows, 0: only shorten   ARGV[3] lease_ms
--
-- Few are put back at once, because a worker that was only cut off keeps the others: those of a first death, or where the
-- first had another before, one alone. That is the one that was claimed last, because a task that kills its worker soon was
-- claimed after those that have been running for longer.
-- The first write is a ZREM, because a server whose memory is full checks only the first.

local MOST_LOOKED_AT = 100
redis.call('ZREM', leased, '')
for _, id in ipairs(redis.call('ZRANGEBYSCORE', leased, '(' .. whole(now + ARGV[3]), '+inf')) do shorten_lease(id) end

local few = math.floor(math.sqrt(ARGV[2]))
local expired = few > 0 and redis.call('ZRANGEBYSCORE', leased, '-inf', now, 'LIMIT', 0, MOST_LOOKED_AT) or {}
if #expired == 0 then return end
local ids, states, last, last_state, is_alone = {}, {}, nil, nil, false
local must_wait = lone_suspect_is_new()
for i, kept in ipairs(redis.call('HMGET', tokens, unpack(expired))) do
  local id, state = expired[i], attempts_in(kept, whole(now))
  is_alone = is_alone or i == 1 and state.deliveries > 0
  if state.deliveries == 0 then
    if #ids < few then ids[#ids + 1], states[#states + 1] = id, state end
  elseif must_wait then
    put_off(leased, id)
  elseif not last or state.claimed > last_state.claimed then
    last, last_state = id, state
  end
end
if last and is_alone then ids, states = {last}, {last_state} end

local score = math.min(now, (next_due() or now) - 1)
for i, id in ipairs(ids) do
  local state = states[i]
  state.deliveries, state.attempts = state.deliveries + 1, state.attempts + 1
  redis.call('ZREM', leased, id)
  redis.call('ZADD', scheduled, score, id)
  redis.call('HSET', tokens, id, kept_as(NOBODY, state))
end
