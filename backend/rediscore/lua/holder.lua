-- Returns the holder of a lock. Used while a slot is moved from one server of a cluster to
-- another, when its keys are not all on the same server.
--
-- KEYS[1]  the lock
--
-- Replies with {token, its remaining TTL in ms or -1 if it has none}, or with nil if the
-- lock is free.

local holder = redis.call('GET', KEYS[1])
if not holder then
  return false
end
return {holder, redis.call('PTTL', KEYS[1])}
