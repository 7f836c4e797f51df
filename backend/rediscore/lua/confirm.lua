-- Extends the lease of a token as renew.lua does. If the token holds the lock, raises the fence
-- counter to at least a given fence before that.
--
-- ARGV[1]  the token
-- ARGV[2]  the TTL in ms
-- ARGV[3]  the fence, or 0
--
-- Replies with {0, ballot} if the token holds the lock, else with {3, ballot}.

local ballot, fence = survey(), tonumber(ARGV[3])
if call('GET', KEYS[1]) == ARGV[1] and fence > tonumber(call('GET', KEYS[2]) or 0) then
  count(fence)
end
return {renew() == 1 and 0 or 3, ballot}
