-- Let another worker sweep.
--
-- KEYS[1] sweeper  string  until when which worker sweeps: ms, a space, its id
-- ARGV[1] ''   ARGV[2] worker id
--
-- Returns whether this worker did.

if string.match(redis.call('GET', sweeper) or '', ' (.*)$') ~= ARGV[2] then return 0 end
return redis.call('DEL', sweeper)
