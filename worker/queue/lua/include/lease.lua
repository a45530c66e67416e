-- Which of the tasks at these places of ARGV are held by a token: their ids, and what is kept for each. Notes the ids
-- of the others, whose lease was lost. A script writes only for what is held.
local function held_by(token, first, last, lost)
  local held, records, n = {}, {}, 0
  for i, kept in ipairs(redis.call('HMGET', tokens, unpack(ARGV, first, last))) do
    local id = ARGV[first + i - 1]
    if kept and token ~= NOBODY and string.sub(kept, 1, 64) == token then
      n = n + 1
      held[n], records[n] = id, kept
    else
      lost[#lost + 1] = id
    end
  end
  return held, records
end
