-- Returns the holder of a lock as inspect.lua does, with KEYS[1] only: see free.lua. The queue counts as empty.

local holder = redis.call('GET', KEYS[1])
return holder and {holder, redis.call('PTTL', KEYS[1]), 0} or 0
