-- Grants the lock to a token as acquire.lua does. Otherwise puts the token into the queue,
-- unless it is there already, and removes up to two dead waiters (see sweep.lua).
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
--include sweep.lua

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
local since = steady(call('HMGET', KEYS[4], 'pulse')[1], time)
local rest = math.max(call('PTTL', KEYS[4]), pause / 1000)
note(token, time, ttl, ARGV[3], nil, since, rest)
if not ticket then
  call('ZADD', KEYS[3], place, token)
end
call('PEXPIRE', KEYS[3], rest)
if time - since > silence then
  sweep(call('ZRANGE', KEYS[3], 0, 1), time)
end
return {1, tonumber(place), call('ZRANK', KEYS[3], token), time, holder, call('PTTL', KEYS[1])}
