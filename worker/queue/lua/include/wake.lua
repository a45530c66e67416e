-- Wakes the workers when something is due earlier than before. ARGV[2] is the channel. Without
-- permission to publish nothing fails: workers look again at their next slow poll.

local function next_due()
  return tonumber(redis.call('ZRANGE', scheduled, 0, 0, 'WITHSCORES')[2])
end

local function wake() redis.pcall('PUBLISH', ARGV[2], '') end

local function wake_if_due_before(was_next)
  local is_next = next_due()
  if is_next and (not was_next or is_next < was_next) then wake() end
end
