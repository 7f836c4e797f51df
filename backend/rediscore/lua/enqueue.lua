-- Grants the lock to a token as acquire.lua does. Otherwise puts the token into the queue,
-- unless it is there already.
--
-- KEYS     see queue.lua
-- ARGV[1]  the token
-- ARGV[2]  the TTL in ms
-- ARGV[3]  the inbox
-- ARGV[4]  the old ticket of a waiter that has lost its place, or empty
--
-- Replies with {0, fence} if the lock was granted; with {1, ticket, rank from 0, time, holder,
-- the holder's remaining TTL in ms or -1 if it has none}; or with 'unswept'. The holder is empty
-- if the lock is free but reserved.

--include fence.lua
--include queue.lua

local token, ttl = ARGV[1], ARGV[2]
local holder = call('GET', KEYS[1]) or served(token)
if holder == unswept then
  return 'unswept'
end
if not holder or holder == token then
  return {0, grant(holder, token, ttl)}
end

local time = now()
local ticket = call('ZSCORE', KEYS[3], token)
local place = ticket or ARGV[4] ~= '' and ARGV[4] or string.format('%.0f', mint())
note(token, time, ttl, ARGV[3])
if not ticket then
  call('ZADD', KEYS[3], place, token)
end
call('PEXPIRE', KEYS[3], 60000)
return {1, tonumber(place), call('ZRANK', KEYS[3], token), time, holder, call('PTTL', KEYS[1])}
