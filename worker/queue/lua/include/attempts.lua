-- The record of a task's attempts, as text after the token of its lease: the version of this format, v1, and
--
--   span         ms from when the task's score was decided to that score: the length of its lease, or the time
--                from its claim to when it is due again. A score further away than that was written before the
--                clock was set back.
--   due          when it was first due, ms; after a Retry, when it was due again
--   appointment  the due time that it was scheduled for, ms
--   failures     how often it failed on its own
--   deliveries   how often its lease expired
--   attempts     how many attempts came before
--   claimed      when it was claimed, ms, while it is leased; else 0
--   error        why it was put back, with no space in it; '' if nothing was wrong

-- As long as a token: Redis searches a hash of short values from the start, which made claims twice as slow.
local NOBODY = string.rep('-', 64)

local function whole(number) return string.format('%.0f', number) end

local function attempts_in(kept, due)
  local state = {
    span = 0, due = due, appointment = due, failures = 0, deliveries = 0, attempts = 0, claimed = 0, error = '',
  }
  if kept then
    local span, first, appointment, failures, deliveries, attempts, claimed, error =
      string.match(kept, '^v1 (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%S*)', 65)
    if span then
      state.span, state.due, state.appointment = tonumber(span), first, appointment
      state.failures, state.deliveries, state.attempts = tonumber(failures), tonumber(deliveries), tonumber(attempts)
      state.claimed, state.error = tonumber(claimed), error
    end
  end
  return state
end

local function kept_as(token, state)
  if token == NOBODY then state.claimed = 0 end
  return token .. 'v1 ' .. whole(state.span) .. ' ' .. state.due .. ' ' .. state.appointment .. ' ' .. state.failures
    .. ' ' .. state.deliveries .. ' ' .. state.attempts .. ' ' .. whole(state.claimed) .. ' ' .. state.error
end
