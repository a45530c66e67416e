-- Give up the turn to sweep.
--
-- KEYS[1] sweeper  string  end of the turn in ms, a space, id of the worker that sweeps
-- ARGV[1] ''   ARGV[2] worker id
--
-- Returns 1 if it was this worker's turn, else 0.

if string.match(redis.call('GET', sweeper) or '', ' (.*)$') ~= ARGV[2] then return 0 end
return redis.call('DEL', sweeper)
