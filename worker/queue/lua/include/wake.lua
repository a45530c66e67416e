-- Wakes workers when something is due earlier than before. ARGV[2] is the channel. Without permission to publish
-- nothing fails: workers look again at their next slow poll.
--
-- Idle workers do not all chase the same moment. One of those in `waiting` claims when the next task is due, and
-- a second one BACKUP_MS later, in case the first has died or is busy by then. A message is
--   ''                     for everybody
--   '* claimer in_us ...'  for these, who claim in so many microseconds, and for whoever is not in `waiting`
--   'claimer in_us ...'    for these alone

local BACKUP_MS = 25
-- Nobody plans further ahead. A plan that does was made before the clock was set back.
local MOST_MS = 60000

local function next_due()
  return tonumber(redis.call('ZRANGE', scheduled, 0, 0, 'WITHSCORES')[2])
end

local function publish(message) redis.pcall('PUBLISH', ARGV[2], message) end

-- Sees to it that two waiting workers claim when something is due at this time. Of those that would come too late,
-- those that were heard from last are chosen: first the caller, if it is about to wait until then. Returns whom
-- to tell, as a message; when the caller has to claim, us from now, if it was chosen; and how many watch then.
local function plan_claims(due, caller, until_ms)
  due = math.max(due, now)
  if caller then
    -- First, because a full server refuses a ZADD as the first write. If the clock is set back, the dead must not
    -- seem to wait.
    redis.call('ZREMRANGEBYSCORE', waiting, '-inf', now - BACKUP_MS)
    redis.call('ZADD', waiting, until_ms, caller)
  end
  local past, soon = '(' .. whole(now - BACKUP_MS), due + BACKUP_MS -- who has not claimed in the past is dead or busy
  local late = redis.call('ZREVRANGEBYSCORE', waiting, now + MOST_MS, past, 'WITHSCORES', 'LIMIT', 0, 2)
  if #late == 0 then return '', nil, 0 end
  local ready = redis.call('ZRANGEBYSCORE', waiting, past, soon, 'WITHSCORES', 'LIMIT', 0, 2)
  local in_time, count = ready[1] and tonumber(ready[2]) <= due, #ready / 2
  local others, callers_in_us = '', nil
  if in_time and count == 2 then return others, nil, count end
  local function plan(id, at)
    local in_us = math.max(0, (at - now) * 1000 - since_now_us)
    redis.call('ZADD', waiting, at, id)
    if id == caller then callers_in_us = in_us else others = others .. ' ' .. id .. ' ' .. whole(in_us) end
  end
  local at = in_time and soon or due
  for i = 1, #late, 2 do
    if (in_time and count >= 2) or tonumber(late[i + 1]) <= soon then break end
    plan(late[i], at)
    in_time, at, count = true, soon, count + 1
  end
  if not in_time and ready[1] then plan(ready[1], due) end
  return others, callers_in_us, count
end

local function tell(others) if others ~= '' then publish(others) end end

local function wake(due)
  local others, _, count = plan_claims(due)
  -- Fewer than two: after a flush nobody is known, although many may wait.
  publish(count >= 2 and '*' .. others or '')
end

local function wake_if_due_before(was_next)
  local is_next = next_due()
  if is_next and (not was_next or is_next < was_next) then wake(is_next) end
end
