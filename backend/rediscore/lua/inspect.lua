-- Returns the holder of a lock and the number of its waiters.
--
-- KEYS[1]  the lock
-- KEYS[2]  the fence counter, not used
-- KEYS[3]  the queue, or none while a slot of a cluster moves and not all keys are on the same server
-- KEYS[4]  the waiters, or none in that case
--
-- Replies with {token, its remaining TTL in ms or -1 if it has none, number of waiters, the last handover if it is
-- known}, or with the number of waiters if the lock is free. That number is 0 without a queue, or without the right to
-- ZCARD.

local waiting = tonumber(KEYS[3] and redis.pcall('ZCARD', KEYS[3])) or 0
local holder = redis.call('GET', KEYS[1])
local handover = holder and KEYS[4] and redis.pcall('HMGET', KEYS[4], 'handover')[1]
return holder and {holder, redis.call('PTTL', KEYS[1]), waiting, handover} or waiting
