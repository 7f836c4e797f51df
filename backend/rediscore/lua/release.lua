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
local first = redis.pcall('ZRANGE', KEYS[3], 0, 0)
if #first == 0 and (not holder or holder == token) then -- nobody waits, or the user may not read who does
  redis.call('DEL', KEYS[1], KEYS[first.err and 1 or 4])
  return holder and 1 or 0
end

if #first == 0 then
  -- A replica may be behind, so only a server that accepts writes may say "not held". This changes nothing.
  redis.call('RENAMENX', KEYS[1], KEYS[1])
  return 0
end

--include fence.lua
--include queue.lua

local held = holder == token
if not held then
  call('ZREM', KEYS[3], token)
  call('HDEL', KEYS[4], ':' .. token)
  first = call('ZRANGE', KEYS[3], 0, 0)
end
if held or not holder then
  local ok, next = pcall(serve, '', first)
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
