-- Ends the lease of a token and hands the lock to the first waiter, or removes the token
-- from the queue.
--
-- ARGV[1]  the token
--
-- Replies with 1 if the token held the lock, with 0 if it did not, or with 'unswept': the
-- token still holds the lock if it did.

if not held then
  call('ZREM', KEYS[3], ARGV[1])
  call('HDEL', KEYS[4], ':' .. ARGV[1])
  first = call('ZRANGE', KEYS[3], '0', '0')
end
if (held or not holder) and not handOn(held, first) then
  return 'unswept'
end
return held and 1 or 0
