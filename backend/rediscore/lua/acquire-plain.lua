-- The cases of acquire.lua in which nobody waits for a lock that is free. A Locker without a queue sends only this, and
-- acquire.lua if the reply is 'queue'. KEYS, ARGV and the other replies are as there.

local holder = not free and redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then
  return {holder, redis.call('PTTL', KEYS[1]), redis.pcall('HMGET', KEYS[4], 'handover')[1]}
elseif free or holder then
  return grant(holder, ARGV[1], ARGV[2])
end
