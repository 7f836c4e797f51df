-- Grants the lock or puts a token into the queue as enqueue.lua does, with a floor for the fence
-- and at a given place, to which a token that is in the queue already moves.
--
-- KEYS     see ballot.lua
-- ARGV[1]  the token
-- ARGV[2]  the TTL in ms
-- ARGV[3]  the inbox
-- ARGV[4]  the place, which is the ticket
-- ARGV[5]  the floor
--
-- Replies as enqueue.lua, with a ballot at the end: {age, store, time, 1 if the token did not hold
-- the lock or 0}.

--include ballot.lua

floor = tonumber(ARGV[5])
local ballot = survey(call('GET', KEYS[1]) == ARGV[1] and 0 or 1)
call('ZADD', KEYS[3], 'XX', ARGV[4], ARGV[1])

local function enqueue()
--include enqueue.lua
end

local reply = enqueue()
if reply ~= 'unswept' then
  reply[#reply + 1] = ballot
end
return reply
