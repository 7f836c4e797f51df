-- Grants the lock or puts a token into the queue as enqueue.lua does, with a floor for the fence
-- and at a given place, to which a token that is in the queue already moves.
--
-- ARGV[1] to ARGV[3]  as there
-- ARGV[4]             the place, which is the ticket
-- ARGV[5]             as there
-- ARGV[6]             the floor
--
-- Replies as enqueue.lua, with a ballot at the end, which ends with 1 if the token did not hold the lock or 0.

floor = tonumber(ARGV[6])
local ballot = survey(call('GET', KEYS[1]) == ARGV[1] and 0 or 1)
call('ZADD', KEYS[3], 'XX', ARGV[4], ARGV[1])
return with(ballot, enqueue())
