-- The cases of release.lua in which nobody waits. A Locker without a queue sends only this, and release.lua if the reply
-- is 'queue'. KEYS, ARGV and the other replies are as there.

local holder = redis.call('GET', KEYS[1])
local held = holder == ARGV[1]
local first = redis.pcall('ZRANGE', KEYS[3], '0', '0') -- a user may lack the right to read who waits
if not first[1] then
  if holder and not held then
    prove(holder)
  elseif first.err then
    redis.call('DEL', KEYS[1])
  else
    redis.call('DEL', KEYS[1], KEYS[4])
  end
  return held and 1 or 0
end
