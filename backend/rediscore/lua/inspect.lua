-- Returns the holder of a lock and the number of its waiters.
--
-- KEYS[1]  the lock
-- KEYS[2]  the fence counter, not used
-- KEYS[3]  the queue
-- KEYS[4]  the waiters
--
-- Replies with {token, its remaining TTL in ms or -1 if it has none, number of waiters, the last handover if it is
-- known}, or with the number of waiters if the lock is free. That number is 0 without the right to ZCARD.

local waiting = tonumber(redis.pcall('ZCARD', KEYS[3])) or 0
local holder = redis.call('GET', KEYS[1])
local handover = holder and redis.pcall('HMGET', KEYS[4], 'handover')[1]
return holder and {holder, redis.call('PTTL', KEYS[1]), waiting, handover} or waiting
