-- Grants the lock to a token, if it is that token's already, or is free and nobody
-- waits for it.
--
-- KEYS     see queue.lua
-- ARGV[1]  the token
-- ARGV[2]  the TTL in ms
--
-- Replies with the fence of the grant, or, if another token holds the lock,
-- with {that token, what is left of its TTL in ms or -1 for ever}. The token is
-- empty if the lock is free, but only for a waiter that has to come for it.

--include fence.lua

local token = ARGV[1]
if call('EXISTS', KEYS[1], KEYS[3]) == 0 then -- free, and nobody waits
  local fence = mint() -- first: if it fails, nothing has happened
  call('SET', KEYS[1], token, 'PX', ARGV[2])
  return fence
end
local holder = call('GET', KEYS[1])
if holder and holder ~= token then
  return {holder, call('PTTL', KEYS[1])}
end

--include queue.lua

holder = holder or served(token)
if holder and holder ~= token then
  return {holder, call('PTTL', KEYS[1])}
end
return grant(holder, token, ARGV[2])
