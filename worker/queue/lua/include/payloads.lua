-- The tasks among these whose payloads fit in one reply, in order: at least the first. To copy hundreds of MB would block
-- the server for seconds, and the caller's timeout would lose the reply.
local MOST_BYTES = 1048576

local function fitting(ids, has_payloads)
  if #ids < 2 or not has_payloads then return ids end
  local fits, room = {}, MOST_BYTES
  for i, id in ipairs(ids) do
    room = room - redis.call('HSTRLEN', payloads, id)
    if i > 1 and room < 0 then break end
    fits[i] = id
  end
  return fits
end
