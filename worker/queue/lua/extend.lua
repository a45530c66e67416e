-- Extend leases.
--
-- include: clock, attempts, lease
-- KEYS[1] leased  zset  task id -> lease expiry, ms
-- KEYS[2] tokens  hash  task id -> token of its lease, and a record of its attempts
-- ARGV[1] now_ms   ARGV[2] lease_ms   ARGV[3..] id, token, ...
--
-- Returns {id, ...}: the tasks whose lease was lost. Without a valid token nothing is written.
--
-- The ZREM removes nothing, because no id is empty. A server whose memory is full refuses a ZADD only as
-- the first write of a script.

local all_lost, claims, ids_of, lease = {}, {}, {}, tonumber(ARGV[2])
redis.call('ZREM', leased, '')
for i = 3, #ARGV, 2 do
  local id, token = ARGV[i], ARGV[i + 1]
  local ids = ids_of[token] or {}
  if #ids == 0 then claims[#claims + 1], ids_of[token] = token, ids end
  ids[#ids + 1] = id
end
for _, token in ipairs(claims) do
  local held, lost, at, kept = held_by(token, ids_of[token])
  for n, id in ipairs(held) do
    redis.call('ZADD', leased, now + lease, id)
    local state = attempts_in(kept[at[n]], '0')
    if state.span ~= lease then
      state.span = lease
      redis.call('HSET', tokens, id, kept_as(token, state))
    end
  end
  for _, id in ipairs(lost) do all_lost[#all_lost + 1] = id end
end
return all_lost
