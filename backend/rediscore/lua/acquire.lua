-- acquire grants the lock to a token if the token already holds it, or if it is free and no waiter
-- in the queue is to get it.
--
-- ARGV[1]  the token
-- ARGV[2]  the TTL in ms
--
-- Replies with the fence of the grant; if another token holds the lock, with {that token, its
-- remaining TTL in ms or -1 if it has none, the last handover or false}; or with 'unswept'. That token is empty if the
-- lock is free but reserved for a waiter without an inbox.

local function acquire()
  local token = ARGV[1]
  local holder = call('GET', KEYS[1]) or served(token)
  if holder == unswept then
    return 'unswept'
  elseif holder and holder ~= token then
    return {holder, call('PTTL', KEYS[1]), call('HMGET', KEYS[4], 'handover')[1]}
  end
  return grant(holder, token, ARGV[2])
end
