-- Returns the ids that token holds; the others, whose lease is lost; the positions in ids of the held ones;
-- and the value kept for each of ids. No valid token, no write.

local function held_by(token, ids)
  local held, lost, at = {}, {}, {}
  local is_token = string.sub(token, 1, 1) ~= '-' -- a task that nobody holds has dashes there
  local kept = redis.call('HMGET', tokens, unpack(ids))
  for n, value in ipairs(kept) do
    if is_token and value and string.sub(value, 1, 64) == token then
      held[#held + 1], at[#at + 1] = ids[n], n
    else
      lost[#lost + 1] = ids[n]
    end
  end
  return held, lost, at, kept
end

-- Every step-th of ARGV, from first on.
local function column(first, step)
  local values = {}
  for i = first, #ARGV, step do values[#values + 1] = ARGV[i] end
  return values
end
