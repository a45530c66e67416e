-- Put leased tasks back on the schedule, or drop those that were cancelled in the meantime.
--
-- include: clock, attempts, lease, let_go, wake
-- KEYS[1] leased     zset  task id -> lease expiry, ms
-- KEYS[2] scheduled  zset  task id -> due time, ms
-- KEYS[3] tokens     hash  task id -> token of its lease, and a record of its attempts
-- KEYS[4] payloads   hash  task id -> opaque bytes
-- KEYS[5] waiting    zset  claimer -> when it claims next, ms
-- ARGV[1] now_ms   ARGV[2] wake channel   ARGV[3] token
-- ARGV[4..] id, delay_ms, kind, error ('': none; no space in it), ...; kind is one of
--   'failed'  counts a failure
--   'again'   resets failures and deliveries
--   'not due' as 'again', but without a span, so that restore.lua may bring it forward
--   'new'     a new appointment
--   'later'   neither counts nor resets
--   'as it was'  due when it was, whatever the delay; not even an attempt
--
-- Returns {id, ...}: the tasks whose lease was lost. Without a valid token nothing is written.
--
-- A task is in exactly one of scheduled, leased, dead. The first write is a ZREM, because a
-- server whose memory is full checks only the first.

local was_next, released = next_due(), false
local held, lost, at, kept = held_by(ARGV[3], column(4, 4))
for n, id in ipairs(held) do
  local row = 4 * at[n]
  local delay, kind = tonumber(ARGV[row + 1]), ARGV[row + 2]
  local later = whole(math.max(0, now + delay))
  local state = attempts_in(kept[at[n]], later)
  local claimed, score = state.claimed, now + delay
  if let_go(id, state) then
    if kind == 'as it was' then
      score, state.span, released = state.due, 0, true
    else
      state.attempts = state.attempts + 1
      if kind == 'failed' then
        state.failures = state.failures + 1
      elseif kind == 'again' or kind == 'not due' then
        state.failures, state.deliveries, state.due = 0, 0, later
      elseif kind == 'new' then
        local notes = state.notes
        state = attempts_in(nil, later)
        state.notes = notes
      end
      state.notes = noted(state.notes, ARGV[row + 3])
      -- From the claim, because the handler decided on what it read after that. See restore.lua.
      state.span = kind == 'not due' and 0 or math.max(0, now + delay - claimed)
    end
    redis.call('ZADD', scheduled, score, id)
    redis.call('HSET', tokens, id, kept_as(NOBODY, state))
  end
end
if released then wake(next_due() or now) else wake_if_due_before(was_next) end
return lost
