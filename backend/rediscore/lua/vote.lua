-- Grants the lock as acquire.lua does, with a floor for the fence.
--
-- KEYS     see ballot.lua
-- ARGV[1]  the token
-- ARGV[2]  the TTL in ms
-- ARGV[3]  the floor
--
-- Replies with {0, fence, ballot} if the lock was granted; with {1, remaining TTL in ms or -1,
-- holder, ballot} if another token holds it; or with 'unswept'. The holder is empty as in
-- acquire.lua. The ballot is {age, store, time, 1 if the token did not hold the lock or 0, place}.
-- The place is behind all waiters, and not before the time.

--include ballot.lua

floor = tonumber(ARGV[3])
local ballot = survey(call('GET', KEYS[1]) == ARGV[1] and 0 or 1)

local function acquire()
--include acquire.lua
end

local reply = acquire()
if reply == 'unswept' then
  return reply
elseif type(reply) == 'number' then
  return {0, reply, ballot}
end
ballot[5] = time
if call('EXISTS', KEYS[3]) == 1 then
  ballot[5] = math.max(time, call('ZRANGE', KEYS[3], -1, -1, 'WITHSCORES')[2] + 1)
end
return {1, reply[2], reply[1], ballot}
