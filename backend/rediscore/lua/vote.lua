-- Grants the lock as acquire.lua does, with a floor for the fence.
--
-- ARGV[1]  the token
-- ARGV[2]  the TTL in ms
-- ARGV[3]  the floor
--
-- Replies with {0, fence, ballot} if the lock was granted; with {1, remaining TTL in ms or -1,
-- holder, ballot} if another token holds it; or with 'unswept'. The ballot ends with 1 if the token did
-- not hold the lock or 0, and, for a refusal, a place. It is behind all waiters, and not before the time.

floor = tonumber(ARGV[3])
local ballot = survey(call('GET', KEYS[1]) == ARGV[1] and 0 or 1)
local reply = acquire()
if reply == 'unswept' then
  return reply
elseif type(reply) == 'number' then
  return {0, reply, ballot}
end
local last = call('ZRANGE', KEYS[3], -1, -1, 'WITHSCORES')[2] or 0
ballot[5] = math.max(now(), math.floor(last + 1))
return {1, reply[2], reply[1], reply[3] or '', ballot}
