-- Ends the lease of a token as release.lua does, and ignores the queue: while a slot is moved from one server of a cluster
-- to another, and not all keys are on the same one, a script can have only KEYS[1].

local holder = redis.call('GET', KEYS[1])
if holder ~= ARGV[1] then
  prove(holder)
  return 0
end
redis.call('DEL', KEYS[1])
return 1
