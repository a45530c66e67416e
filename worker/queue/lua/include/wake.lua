-- Wakes workers when something is due earlier than before: the message is in how many us. Without permission to publish
-- nothing fails: workers look again at their next slow poll.

local function wake(due) redis.pcall('PUBLISH', channel, whole(us_until(due))) end

local function wake_if_due_before(was_next)
  local is_next = next_due()
  if is_next and (not was_next or is_next < was_next) then wake(is_next) end
end
