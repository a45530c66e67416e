-- Put back what a claim leased whose reply was lost. It was delivered to nobody, so nothing is counted.
--
-- include: clock, attempts, due, wake
-- KEYS[1] leased     zset     task id -> lease expiry, ms
-- KEYS[2] scheduled  zset     task id -> due time, ms
-- KEYS[3] tokens     hash     task id -> token of its lease, and a record of its attempts
-- KEYS[4] claims     zset     claimer -> end of the leases that its latest claim gave, ms
-- KEYS[5] channel    channel  wakes workers
-- ARGV[1] now_ms   ARGV[2] token of the claim, the claimer's latest   ARGV[3] claimer
--
-- The first write is a ZREM, because a server whose memory is full checks only the first.

local was_next = next_due()
local lease_end = redis.call('ZSCORE', claims, ARGV[3])
for _, id in ipairs(lease_end and redis.call('ZRANGEBYSCORE', leased, lease_end, lease_end) or {}) do
  local kept = redis.call('HGET', tokens, id)
  if kept and string.sub(kept, 1, 64) == ARGV[2] then
    local state = attempts_in(kept, whole(now))
    state.span = 0
    redis.call('ZREM', leased, id)
    redis.call('ZADD', scheduled, state.due, id)
    redis.call('HSET', tokens, id, kept_as(NOBODY, state))
  end
end
wake_if_due_before(was_next)
