local function is_leased(kept) return kept and string.sub(kept, 1, 1) ~= '-' end -- dashes mean that nobody holds it

-- Returns the ids that are held with this token; the others, whose lease was lost; the positions of the held
-- ones in ids; and the value kept for each id. A script writes only for the ids that are held.
local function held_by(token, ids)
  local held, lost, at = {}, {}, {}
  local kept = redis.call('HMGET', tokens, unpack(ids))
  for n, value in ipairs(kept) do
    if is_leased(value) and string.sub(value, 1, 64) == token then
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
