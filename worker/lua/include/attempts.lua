-- What a task's attempts came to, as text behind the token of its lease:
--
--   span         ms from when the task's score was written to that score: the length of its lease
--                or of its delay. It tells a score that a clock moved from one that was meant.
--   due          when it was first due, ms; after a Retry, when that is due
--   appointment  when it was due as it was scheduled, ms
--   failures     times it failed alone
--   deliveries   times its lease expired
--   attempts     how often it was tried before
--   cancelled    ' cancelled' when it is to be dropped instead of being put back

local NOBODY = string.rep('-', 64)

local function whole(number) return string.format('%.0f', number) end

local function attempts_in(kept, due)
  local state = {span = 0, due = due, appointment = due, failures = 0, deliveries = 0, attempts = 0, cancelled = ''}
  if kept then
    local span, first, appointment, failures, deliveries, attempts, cancelled =
      string.match(kept, '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+)(.*)$', 65)
    if span then
      state.span, state.due, state.appointment = tonumber(span), first, appointment
      state.failures, state.deliveries = tonumber(failures), tonumber(deliveries)
      state.attempts, state.cancelled = tonumber(attempts), cancelled
    end
  end
  return state
end

local function kept_as(token, state)
  return token .. whole(state.span) .. ' ' .. state.due .. ' ' .. state.appointment .. ' ' .. state.failures
    .. ' ' .. state.deliveries .. ' ' .. state.attempts .. state.cancelled
end
