-- Returns the holder of a lock and the number of its waiters.
--
-- KEYS[1]  the lock
-- KEYS[2]  the fence counter of the lock's slot, not used
-- KEYS[3]  the queue
--
-- Replies with {token, its remaining TTL in ms or -1 if it has none, number of waiters}, or
-- with the number of waiters if the lock is free. For a user without the right to ZCARD that
-- number is 0.

local waiting = redis.pcall('ZCARD', KEYS[3])
if type(waiting) ~= 'number' then
  waiting = 0
end
local holder = redis.call('GET', KEYS[1])
if not holder then
  return waiting
end
return {holder, redis.call('PTTL', KEYS[1]), waiting}
