-- Say in which of a worker's queues there is something to claim soon. In the others its claimers still wait. Extend
-- its turns to sweep.
--
-- include: clock
-- KEYS[1] scheduled  zset    task id -> due time, ms
-- KEYS[2] leased     zset    task id -> lease expiry, ms
-- KEYS[3] paused     string  present while the queue is paused
-- KEYS[4] waiting    zset    claimer -> when it claims next, ms
-- KEYS[5] sweeper    string  end of the turn in ms, a space, id of the worker that sweeps
-- ARGV[1] now_ms   ARGV[2] how soon, ms
-- ARGV[3..] lease_ms, claimer ('': does not wait as it is told), worker id ('': does not sweep), ...
--
-- Returns {is_near, has_turn, ...}, each 1 or 0. Takes the keys of any number of queues, one after another.
--
-- The first ZREM removes nothing, because no id is empty. It makes a server that refuses writes, and so every
-- claim, refuse this script, too.

local soon = now + tonumber(ARGV[2])
redis.call('ZREM', waiting, '')

local function score(key, at) return tonumber(redis.call('ZRANGE', key, at, at, 'WITHSCORES')[2]) end

local answers = {}
for n = 1, #KEYS / 5 do
  scheduled, leased, paused, waiting, sweeper = unpack(KEYS, 5 * n - 4, 5 * n)
  local lease, claimer, worker = unpack(ARGV, 3 * n, 3 * n + 2)
  local latest = now + lease -- leases that end later were given before the clock was set back
  local is_near = (score(scheduled, 0) or math.huge) < soon or (score(leased, 0) or math.huge) < soon
    or (score(leased, -1) or 0) > latest or redis.call('EXISTS', paused) == 1
  if not is_near and claimer ~= '' then redis.call('ZADD', waiting, 'XX', soon, claimer) end
  local has_turn = worker ~= '' and string.match(redis.call('GET', sweeper) or '', ' (.*)$') == worker
  if has_turn then redis.call('SET', sweeper, string.format('%.0f %s', latest, worker)) end
  answers[2 * n - 1], answers[2 * n] = is_near and 1 or 0, has_turn and 1 or 0
end
return answers
