-- Put tasks whose lease has ended back on the schedule, in front of the others, and count a delivery for each: their worker
-- died, froze or was cut off. Shorten leases that were given before the clock was set back.
--
-- include: clock, attempts, shorten_lease, due, suspects
-- KEYS[1] leased     zset    task id -> lease expiry, ms
-- KEYS[2] scheduled  zset    task id -> due time, ms
-- KEYS[3] tokens     hash    task id -> token of its lease, and a record of its attempts
-- KEYS[4] control    hash    alone: id of the suspect that was last claimed alone
-- ARGV[1] now_ms   ARGV[2] limit of the claim that follows; 0: only shorten leases
-- ARGV[3] lease_ms: only longer leases are shortened
-- ARGV[4] latest, ms: nothing is done later, because if Redis was frozen, the leases of living workers have ended, too
--
-- Returns 1 if nothing was done yet but to shorten some leases, else nothing.
--
-- Few are put back at once, because a worker that was only cut off keeps the others. If the task whose lease ended first was
-- never redelivered before, only such tasks are put back. Otherwise it is a single one that was: the one claimed last, because
-- a task that kills its worker soon was claimed after those that have been running for longer. While another of these may
-- be about to kill, they all wait.
-- The first write is a ZREM, because a server whose memory is full checks only the first.

if now > tonumber(ARGV[4]) then return end
redis.call('ZREM', leased, '')
local MOST = 500
local long = redis.call('ZREVRANGEBYSCORE', leased, '+inf', '(' .. whole(now + ARGV[3]), 'LIMIT', 0, MOST)
local shortened = 0
for _, id in ipairs(long) do
  if shorten_lease(id) then shortened = shortened + 1 end
end
if shortened == MOST then return 1 end

local few = math.floor(math.sqrt(ARGV[2]))
local expired = few > 0 and redis.call('ZRANGEBYSCORE', leased, '-inf', now, 'LIMIT', 0, MOST) or {}
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
  state.span, state.deliveries, state.attempts = 0, state.deliveries + 1, state.attempts + 1
  redis.call('ZREM', leased, id)
  redis.call('ZADD', scheduled, score, id)
  redis.call('HSET', tokens, id, kept_as(NOBODY, state))
end
