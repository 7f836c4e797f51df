-- Grants the lock to a token, if it is free or that token's already.
--
-- KEYS[1]  the lock
-- KEYS[2]  the fence counter of the lock's slot
-- ARGV[1]  the token
-- ARGV[2]  the TTL in ms
--
-- Replies with the fence of the grant, or, if another token holds the lock,
-- with {that token, what is left of its TTL in ms or -1 for ever}.

local call = redis.call

local holder = call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then
  return {holder, call('PTTL', KEYS[1])}
end

-- The fence is the larger of the counter + 8 and the time in microseconds: time
-- has moved on even if the counter was lost with everything else. A counter that
-- was set to the time less than 10 ms ago, which its TTL of a day tells, need not
-- be compared again. The counter is written first: if that is not allowed, nothing
-- has happened.
local fence = call('INCRBY', KEYS[2], 8)
local rest = call('PTTL', KEYS[2])
if rest <= 86400000 - 10 or rest > 86400000 then
  local time = call('TIME')
  fence = math.max(fence, time[1] * 1000000 + time[2])
  call('SET', KEYS[2], string.format('%.0f', fence), 'PX', 86400000)
end

if not holder then
  call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
else
  local rest = call('PTTL', KEYS[1])
  if rest >= 0 and rest < tonumber(ARGV[2]) then
    call('PEXPIRE', KEYS[1], ARGV[2])
  end
end
return fence
