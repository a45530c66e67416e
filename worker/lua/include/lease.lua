-- Who holds what: the ids from ARGV[first] on, every step-th, that token holds, where in ARGV each
-- stands, and what is kept of it; then the ids whose lease is lost. No valid token, no write.

local function held_by(token, first, step)
  local ids, held, rows, kept, lost = {}, {}, {}, {}, {}
  for i = first, #ARGV, step do ids[#ids + 1] = ARGV[i] end
  for n, value in ipairs(redis.call('HMGET', tokens, unpack(ids))) do
    -- While nobody holds a task, dashes stand where its token stood.
    if value and string.sub(value, 1, 64) == token and string.sub(token, 1, 1) ~= '-' then
      held[#held + 1], rows[#rows + 1], kept[#kept + 1] = ids[n], first + (n - 1) * step, value
    else
      lost[#lost + 1] = ids[n]
    end
  end
  return held, rows, kept, lost
end
