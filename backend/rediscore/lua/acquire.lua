-- Grants the lock to a token, if it is free or that token's already.
--
-- KEYS[1]  the lock
-- KEYS[2]  the fence counter of the lock's slot
-- ARGV[1]  the token
-- ARGV[2]  the TTL in ms
--
-- Replies with the fence of the grant, or, if another token holds the lock,
-- with {that token, what is left of its TTL in ms or -1 for ever}.

local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then
  return {holder, redis.call('PTTL', KEYS[1])}
end

-- Time has moved on even if the counter was lost with everything else. The
-- counter is written first: if that is not allowed, nothing has happened. Unused
-- for a day, it expires.
local time = redis.call('TIME')
local last = tonumber(redis.call('GET', KEYS[2])) or 0
local fence = math.max(last + 8, time[1] * 1000000 + time[2])
redis.call('SET', KEYS[2], string.format('%.0f', fence), 'EX', 86400)

if not holder then
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
else
  local rest = redis.call('PTTL', KEYS[1])
  if rest >= 0 and rest < tonumber(ARGV[2]) then
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
  end
end
return fence
