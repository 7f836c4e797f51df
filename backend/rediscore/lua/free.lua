-- Ends the lease of a token without a look at the queue, for while a slot is moved
-- from one server of a cluster to another, and not all its keys are in one place.
--
-- KEYS[1]  the lock
-- ARGV[1]  the token
--
-- Replies with 1 if the token held the lock, else with 0.

local holder = redis.call('GET', KEYS[1])
if holder == ARGV[1] then
  redis.call('DEL', KEYS[1])
  return 1
end

-- A replica may be behind: only a server that accepts writes may say "not held".
-- Neither of these changes anything.
if holder then
  redis.call('RENAMENX', KEYS[1], KEYS[1])
else
  redis.call('PERSIST', KEYS[1])
end
return 0
