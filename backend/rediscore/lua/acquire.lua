-- Grants the lock to a token if the token already holds it, or if it is free and no waiter
-- in the queue is to get it.
--
-- KEYS     see queue.lua
-- ARGV[1]  the token
-- ARGV[2]  the TTL in ms
--
-- Replies with the fence of the grant; if another token holds the lock, with {that token, its
-- remaining TTL in ms or -1 if it has none}; or with 'unswept'. That token is empty if the lock
-- is free but reserved for a waiter without an inbox.

local token = ARGV[1]
local free = redis.call('EXISTS', KEYS[1], KEYS[3]) == 0 -- and nobody waits
if free and not KEYS[5] and redis.call('PTTL', KEYS[2]) > 172799900 then -- no vote, and frequent: as mint in fence.lua
  local fence = redis.call('INCRBY', KEYS[2], '8')
  redis.call('SET', KEYS[1], token, 'PX', ARGV[2])
  return fence
end

--include fence.lua

if free then
  local fence = mint() -- first, so that nothing has happened if it fails
  call('SET', KEYS[1], token, 'PX', ARGV[2])
  return fence
end
local holder = call('GET', KEYS[1])
if holder and holder ~= token then
  return {holder, call('PTTL', KEYS[1])}
end

--include queue.lua

holder = holder or served(token)
if holder == unswept then
  return 'unswept'
end
if holder and holder ~= token then
  return {holder, call('PTTL', KEYS[1])}
end
return grant(holder, token, ARGV[2])
