-- Ends the lease of a token, and ignores the queue. Used while a slot is moved from one
-- server of a cluster to another, when its keys are not all on the same server.
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

-- A replica may be behind, so only a server that accepts writes may say "not held".
-- Neither of these writes changes anything.
if holder then
  redis.call('RENAMENX', KEYS[1], KEYS[1])
else
  redis.call('PERSIST', KEYS[1])
end
return 0
