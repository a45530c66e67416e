-- What becomes of claims whose reply was lost.

local REMEMBERED_MS = 3600000

-- Releases the tasks that the caller's lost claims leased: no worker holds them. Only its latest claim can have
-- left any, because each claim reports those before it. Their leases end when that claim said.
local function give_back(lost, claimer)
  local lease_end = redis.call('ZSCORE', claims, claimer)
  local all = lease_end and redis.call('ZRANGEBYSCORE', leased, lease_end, lease_end) or {}
  for first = 1, #all, 1000 do
    local some = {unpack(all, first, math.min(first + 999, #all))}
    for i, kept in ipairs(redis.call('HMGET', tokens, unpack(some))) do
      if kept and lost[string.sub(kept, 1, 64)] then
        local state = attempts_in(kept, whole(now))
        if state.deliveries > 0 or is_cancelled(state) then
          redis.call('ZADD', leased, now, some[i]) -- stays a suspect, or is dropped as suspects are
        else
          state.span = 0
          redis.call('ZREM', leased, some[i])
          redis.call('ZADD', scheduled, state.due, some[i])
          redis.call('HSET', tokens, some[i], kept_as(NOBODY, state))
        end
      end
    end
  end
end

-- Notes the tokens of lost claims, ARGV from first on. A claim that Redis executes after this is recognized by
-- its token.
local function note_lost_claims(first, claimer, lease)
  redis.call('ZREMRANGEBYSCORE', lost_claims, '-inf', now)
  redis.call('ZREMRANGEBYSCORE', claims, '-inf', now - REMEMBERED_MS)
  local lost = {}
  for i = first, #ARGV do
    redis.call('ZADD', lost_claims, now + lease + REMEMBERED_MS, ARGV[i])
    lost[ARGV[i]] = true
  end
  give_back(lost, claimer)
end
