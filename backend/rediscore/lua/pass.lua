-- Prepares a release (see release.lua). The fence of the waiter that is granted the lock has a floor, and one
-- waiter can be made the first.
--
-- ARGV[1]  the token
-- ARGV[2]  the token that comes first if it waits, or empty
-- ARGV[3]  the floor

floor = tonumber(ARGV[3])
call('HDEL', KEYS[4], '') -- changes nothing, but lets a full server accept what follows
if ARGV[2] ~= '' and (call('GET', KEYS[1]) or ARGV[1]) == ARGV[1] then
  call('ZADD', KEYS[3], 'XX', string.format('-%.0f', now()), ARGV[2])
end
