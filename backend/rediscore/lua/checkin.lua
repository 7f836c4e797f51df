-- Finds out whether a waiter was granted the lock. Records that the waiter is alive, and its
-- inbox. If the lock is free, the first waiter in the queue gets it before that; no other
-- lease is created or extended.
--
-- KEYS     see queue.lua
-- ARGV[1]  the token
-- ARGV[2]  the inbox
--
-- Replies with {0, fence} if the lock is granted now; {1, ticket, rank from 0, time,
-- holder, the holder's remaining TTL in ms or -1 if it has none} if the token waits;
-- {2, fence, time of the grant, time} if it was granted before; or {3} if it is not in
-- the queue. The holder is empty if the lock is free but reserved.

--include fence.lua
--include queue.lua

local token = ARGV[1]
local before = call('GET', KEYS[1])
local holder = before or served(token)
local time = now()
if holder == token then
  local handover = call('HGET', KEYS[4], 'handover') or ''
  local fence, granted, to = handover:match('^(%d+) (%d+) (.*)$')
  if to ~= token then
    return {3}
  end
  if not before then
    return {0, tonumber(fence)}
  end
  return {2, tonumber(fence), tonumber(granted), time}
end

local waiter = call('HGET', KEYS[4], ':' .. token) or ''
local ttl, known = waiter:match('^%d+ (%d+) (.*)$')
local ticket = call('ZSCORE', KEYS[3], token)
if not ttl or not ticket then
  return {3}
end
note(token, time, ttl, ARGV[2], known)
call('PEXPIRE', KEYS[3], 60000)
return {1, tonumber(ticket), call('ZRANK', KEYS[3], token), time, holder or '', call('PTTL', KEYS[1])}
