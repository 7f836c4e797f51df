-- Tells who holds a lock, for while a slot is moved from one server of a cluster to
-- another, and not all its keys are in one place.
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
