-- Tells who holds a lock.
--
-- KEYS[1]  the lock
--
-- Replies with {token, what is left of its TTL in ms or -1 for ever}, or with
-- nothing if the lock is free.

local holder = redis.call('GET', KEYS[1])
if not holder then
  return false
end
return {holder, redis.call('PTTL', KEYS[1])}
