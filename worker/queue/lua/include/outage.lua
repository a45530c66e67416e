-- After an outage of Redis the leases that have ended are left to their workers for SPARED_MS, in which those that
-- live extend theirs. `spared` says until when.

local SPARED_MS = 2000
-- A claim that was under way for longer has waited out an outage in a socket.
local STALE_MS = 1000

-- 0 if they are not spared now.
local function leases_spared_until()
  local until_ms = tonumber(redis.call('GET', spared) or 0)
  return until_ms <= now + SPARED_MS and until_ms or 0 -- later: before the clock was set back
end

-- Spares the leases after an outage that lasted for a third of one: once, although every caller tells of it.
local function note_silence(ms, lease)
  if ms <= math.max(lease / 3, STALE_MS) then return end
  if leases_spared_until() < now - ms then
    redis.call('ZREM', leased, '') -- a full server refuses a SET as the first write
    redis.call('SET', spared, whole(now + SPARED_MS))
  end
end
