-- The cases of release.lua in which nobody waits, which need no function. While a slot is moved from one server of a
-- cluster to another, and not all keys are on the same one, this is the whole script: it has only KEYS[1] then, and
-- ignores the queue. KEYS, ARGV and the reply are as there.

local holder = redis.call('GET', KEYS[1])
local held = holder == ARGV[1]
local first = KEYS[3] and redis.pcall('ZRANGE', KEYS[3], '0', '0') or {} -- a user may lack the right to read who waits
if not first[1] then
  -- A replica may be behind, so only a server that accepts writes may say "not held".
  if holder and not held then
    redis.call('RENAMENX', KEYS[1], KEYS[1]) -- changes nothing
  else
    redis.call('DEL', KEYS[1], not first.err and KEYS[4] or KEYS[1])
  end
  return held and 1 or 0
end
