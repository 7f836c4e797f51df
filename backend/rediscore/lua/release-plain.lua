-- The cases of release.lua in which nobody waits. A Locker without a queue sends only this, and release.lua if the reply
-- is 'queue'. While a slot is moved from one server of a cluster to another, and not all keys are on the same one, this
-- is the whole script, too: it has only KEYS[1] then, and ignores the queue. KEYS, ARGV and the other replies are as there.

local holder = redis.call('GET', KEYS[1])
local held = holder == ARGV[1]
local first = KEYS[3] and redis.pcall('ZRANGE', KEYS[3], '0', '0') or {} -- a user may lack the right to read who waits
if not first[1] then
  if holder and not held then
    prove(holder)
  elseif KEYS[4] and not first.err then
    redis.call('DEL', KEYS[1], KEYS[4])
  else
    redis.call('DEL', KEYS[1])
  end
  return held and 1 or 0
end
