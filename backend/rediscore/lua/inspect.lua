-- Tells who holds a lock, and how many wait for it.
--
-- KEYS[1]  the lock
-- KEYS[2]  the fence counter of the lock's slot, which is not used
-- KEYS[3]  the queue
--
-- Replies with {token, what is left of its TTL in ms or -1 for ever, how many wait}, or
-- with how many wait if the lock is free. A user without the right to count is told of
-- nobody.

local waiting = redis.pcall('ZCARD', KEYS[3])
if type(waiting) ~= 'number' then
  waiting = 0
end
local holder = redis.call('GET', KEYS[1])
if not holder then
  return waiting
end
return {holder, redis.call('PTTL', KEYS[1]), waiting}
