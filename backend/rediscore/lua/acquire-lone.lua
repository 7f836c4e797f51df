-- The frequent cases of acquire.lua, which need no function. A vote has none: it answers in another form.
--
-- KEYS and ARGV as there. The counter's TTL is that of less than 100 ms ago: see mint in fence.lua.

local free = redis.call('EXISTS', KEYS[1], KEYS[3]) == 0 -- and nobody waits
local holder = not free and redis.call('GET', KEYS[1])
if KEYS[5] then -- a vote
elseif free and redis.call('PTTL', KEYS[2]) > 172799900 then
  local fence = redis.call('INCRBY', KEYS[2], '8')
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
  return fence
elseif holder and holder ~= ARGV[1] then
  return {holder, redis.call('PTTL', KEYS[1]), redis.pcall('HMGET', KEYS[4], 'handover')[1]}
end
