-- Does for several tokens what release.lua does for one. All of them leave the queue before the lock is handed on, so it
-- goes to none of them. If the script fails, it has ended no lease.
--
-- ARGV  the tokens
--
-- Replies with a list of 1 and 0, for each token as release.lua does; or with 'unswept'.

local holder, held, replies = call('GET', KEYS[1]), false, {}
for i, token in ipairs(ARGV) do
  if token == holder and not held then
    held, replies[i] = true, 1
  else
    call('ZREM', KEYS[3], token)
    call('HDEL', KEYS[4], ':' .. token)
    replies[i] = 0
  end
end
if (held or not holder) and not handOn(held, call('ZRANGE', KEYS[3], '0', '0')) then
  return 'unswept'
end
return replies
