-- Put back the tasks that the application's records say are waiting and that Redis lost.
--
-- include: clock, attempts, shorten_lease, due, wake
-- KEYS[1] scheduled  zset    task id -> due time, ms
-- KEYS[2] leased     zset    task id -> lease expiry, ms
-- KEYS[3] letters    hash    task id -> why it is dead
-- KEYS[4] tokens     hash    task id -> token of its lease, and a record of its attempts
-- KEYS[5] payloads   hash    task id -> opaque bytes
-- KEYS[6] control    hash    paused: present while the queue is; sweeper: end of the turn, ms, a space, worker id
-- KEYS[7] channel    channel of messages for those who wait
-- ARGV[1] now_ms   ARGV[2] worker id ('': regardless of turns)   ARGV[3] term_ms
-- ARGV[4] '1': restore them; '': only look
-- ARGV[5..] id, delay_ms, payload ('' is none), ...
--
-- Returns {turn, turn_in_ms, paused, due, id, ...}: the ids that were lost and are restored; if it
-- only looks, those that it would restore or bring forward
--   turn    0: it is another worker's turn for turn_in_ms more, and nothing is done; 1: it is the caller's;
--           2: the caller has only just got it, so Redis may have lost data before
--   due     how many are scheduled and already due, so about to be claimed
--
-- Leased and dead tasks stay where they are. A scheduled task is only ever brought forward: its score is too
-- late if this server's clock was behind, or was set back. A task that was postponed stays if it was due when its
-- handler's attempt was claimed: what the handler read then is what it decided on. A paused queue is not touched.
--
-- A score may be up to SLACK_MS later than its record says, because the producer sent a delay a moment after
-- writing the record. Bringing all of those forward would mean reading all records twice. The delays passed to this
-- script are as inexact, so a task that seems to be due up to SLACK_MS after its claim counts as due at the claim.
--
-- The first ZREM removes nothing, because no id is empty. It makes a server that refuses writes, and so every
-- claim, refuse this script, too. Otherwise a server that is read-only, short of replicas or out of disk space
-- would report due tasks as about to be claimed.

local SLACK_MS = 100
redis.call('ZREM', scheduled, '')
local turn = 1
if ARGV[2] ~= '' then
  local term = tonumber(ARGV[3])
  local ends, worker = string.match(redis.call('HGET', control, 'sweeper') or '', '^(%d+) (.*)$')
  ends = tonumber(ends or 0)
  if worker ~= ARGV[2] then
    -- A turn that ends later than any turn given now was given before the clock was set back.
    if ends > now and ends <= now + term then return {0, ends - now, redis.call('HEXISTS', control, 'paused'), 0} end
    turn = 2
  end
  redis.call('HSET', control, 'sweeper', whole(now + term) .. ' ' .. ARGV[2])
end
if redis.call('HEXISTS', control, 'paused') == 1 then return {turn, 0, 1, 0} end

local look_only, was_next = ARGV[4] == '', next_due()
local reply = {turn, 0, 0, 0}
for i = 5, #ARGV, 3 do
  local id, due, payload = ARGV[i], now + tonumber(ARGV[i + 1]), ARGV[i + 2]
  local score = tonumber(redis.call('ZSCORE', scheduled, id) or nil)
  if score and score <= now then
    reply[4] = reply[4] + 1
  elseif score then
    local kept = redis.call('HGET', tokens, id)
    local claimed_at = kept and score - attempts_in(kept, '0').span
    local is_postponed = claimed_at and claimed_at <= now and due <= claimed_at + SLACK_MS
    if not is_postponed and due < score - SLACK_MS then
      if look_only then
        reply[#reply + 1] = id
      else
        redis.call('ZADD', scheduled, due, id)
      end
    end
  elseif redis.call('ZSCORE', leased, id) then
    shorten_lease(id) -- otherwise it is left to its worker
  elseif redis.call('HEXISTS', letters, id) == 0 then
    if not look_only then
      if payload ~= '' then redis.call('HSET', payloads, id, payload) end
      redis.call('ZADD', scheduled, due, id)
    end
    reply[#reply + 1] = id
  end
end
wake_if_due_before(was_next)
return reply
