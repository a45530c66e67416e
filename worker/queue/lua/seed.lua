-- Put the next occurrence of a recurring task on the schedule, once.
--
-- include: clock, attempts
-- KEYS[1] scheduled  zset  task id -> due time, ms
-- KEYS[2] tokens     hash  task id -> token of its lease, and a record of its attempts
-- KEYS[3] seeded     zset  occurrence -> due time, ms: the last that were scheduled here
-- KEYS[4] control    hash  recurrence: until when a schedule is in force, when its worker started (both ms), the schedule
-- ARGV[1] now_ms   ARGV[2] started_at_ms, or VERSIONS and a version   ARGV[3] schedule
-- ARGV[4] id and ARGV[5] due of the upcoming occurrence: the first after the time of the caller's claim
-- ARGV[6] id and ARGV[7] due of the expected occurrence, if it is due: the last that the caller seeded
--
-- Returns {in_force, id, ...}: 1 if the caller's schedule is in force, else 0; the occurrences that were put
-- on the schedule
--
-- An occurrence is seeded before the previous one runs. So while anything is recorded as seeded, Redis has lost
-- nothing, and each seeded occurrence is scheduled, leased, dead, done or cancelled: it is never seeded again,
-- even if the clock is set back. If nothing is recorded, everything was lost, and the expected occurrence has
-- not begun.
--
-- An upcoming occurrence that is past is seeded only if no later one was: the caller was frozen after its claim.
--
-- The first ZREM removes nothing, because no id is empty. A server whose memory is full refuses a ZADD only as
-- the first write of a script.

local RECORDED = 100
local IN_FORCE_MS = 180000
local VERSIONS = 1000000000000000
local started, schedule = tonumber(ARGV[2]), ARGV[3]

local function last_seeded()
  return tonumber(redis.call('ZRANGE', seeded, -1, -1, 'WITHSCORES')[2])
end

redis.call('ZREM', scheduled, '')
local last = last_seeded()
local all_lost = not last

local valid, since, in_force = string.match(redis.call('HGET', control, 'recurrence') or '', '^(%d+) (%d+) (.*)$')
valid, since = tonumber(valid or 0), tonumber(since or 0)
-- An end later than any given now, or a start in the future, dates from before the clock was set back.
if valid > now + IN_FORCE_MS then valid = 0 end
if since > now and since < VERSIONS then since = 0 end
if started > now and started < VERSIONS then started = 0 end
if in_force ~= schedule then
  local is_newer = not in_force or started > since or (started == since and schedule > in_force)
  -- Workers with the other schedule that no longer extend it are gone, or have been busy for long.
  if not is_newer and valid > now then return {0} end
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', seeded, '(' .. whole(now), '+inf')) do
    local is_waiting = id ~= ARGV[4] and redis.call('HEXISTS', tokens, id) == 0 -- it was never claimed
    -- One that is not on the schedule was done before the clock was set back: it must not be seeded again.
    if is_waiting and redis.call('ZREM', scheduled, id) == 1 then redis.call('ZREM', seeded, id) end
  end
  since, last = 0, last_seeded()
end
since = math.max(started, since)
redis.call('HSET', control, 'recurrence', whole(now + IN_FORCE_MS) .. ' ' .. whole(since) .. ' ' .. schedule)

local reply = {1}
local function seed(id, due)
  redis.call('ZADD', scheduled, due, id)
  redis.call('ZADD', seeded, due, id)
  reply[#reply + 1] = id
end

if ARGV[6] and all_lost then seed(ARGV[6], ARGV[7]) end
local id, due = ARGV[4], tonumber(ARGV[5])
local is_past = last and due <= last and due <= now
if not is_past and not redis.call('ZSCORE', seeded, id) then seed(id, ARGV[5]) end
redis.call('ZREMRANGEBYRANK', seeded, 0, -1 - RECORDED)
return reply
