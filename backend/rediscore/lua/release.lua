-- Ends the lease of a token and hands the lock to the first waiter, or removes the token
-- from the queue.
--
-- KEYS     see queue.lua
-- ARGV[1]  the token
--
-- Replies with 1 if the token held the lock, with 0 if it did not, or with 'unswept': the
-- token still holds the lock if it did.

local token = ARGV[1]
local holder = redis.call('GET', KEYS[1])
local waited = redis.call('EXISTS', KEYS[4]) == 1
if holder == token and not waited then
  redis.call('DEL', KEYS[1])
  return 1
end

-- A replica may be behind, so only a server that accepts writes may say "not held".
-- Neither of these writes changes anything.
if not waited then
  if holder then
    redis.call('RENAMENX', KEYS[1], KEYS[1])
  else
    redis.call('DEL', KEYS[4])
  end
  return 0
end

--include fence.lua
--include queue.lua

-- A full server refuses commands that take memory, unless the script has written before. So this
-- write, which changes nothing, comes first.
call('HDEL', KEYS[4], '')

local held = holder == token
if not held then
  call('ZREM', KEYS[3], token)
  call('HDEL', KEYS[4], ':' .. token)
end
if held or not holder then
  local ok, next = pcall(serve, '')
  if ok and next == unswept then
    return 'unswept'
  end
  if held and (not ok or not next or next == '') then -- it failed, or no waiter can be given the lock
    call('DEL', KEYS[1])
  end
  if ok and not next then -- the queue is empty
    call('DEL', KEYS[4])
  end
end
return held and 1 or 0
