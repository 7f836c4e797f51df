-- Ends the lease of a token, or its wait. The lock goes to the first waiter.
--
-- KEYS     see queue.lua
-- ARGV[1]  the token
--
-- Replies with 1 if the token held the lock, else with 0.

local token = ARGV[1]
local holder = redis.call('GET', KEYS[1])
local waited = redis.call('EXISTS', KEYS[3]) == 1
if holder == token and not waited then
  redis.call('DEL', KEYS[1], KEYS[4])
  return 1
end

--include queue.lua

if holder == token then
  local ok, next = pcall(serve, '')
  if not ok or not next or next == '' then -- it failed, or nobody can be given the lock
    call('DEL', KEYS[1])
  end
  return 1
end

-- A replica may be behind: only a server that accepts writes may say "not held".
if waited then
  forget(token)
  if not holder then
    pcall(serve, '')
  end
elseif holder then -- these two change nothing
  call('RENAMENX', KEYS[1], KEYS[1])
else
  call('PERSIST', KEYS[1])
end
return 0
