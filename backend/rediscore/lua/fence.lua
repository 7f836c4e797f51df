-- Functions of the scripts that grant a lock. KEYS are as in queue.lua.

local call = redis.call

-- now returns the time in microseconds.
local function now()
  local time = call('TIME')
  return time[1] * 1000000 + time[2]
end

-- mint returns the next fence of the slot: the last one + 8, or the time in microseconds if
-- that is larger. Time has moved on even if the counter was lost with all data.
--
-- When the counter is set to the time, it gets a TTL of a day, which then shows how much time has
-- passed since. For 10 ms the counter is only raised by 8. For 10 s it is raised by the time that
-- has passed, which is cheaper than to read the clock. While the counter is ahead of the clock, it
-- has a TTL of two days, so that the clock is read each time. (Redis formats an argument that is a
-- number. A string is cheaper.)
local function mint()
  local elapsed = 86400000 - call('PTTL', KEYS[2])
  if elapsed >= 0 and elapsed < 10 then
    return call('INCRBY', KEYS[2], '8')
  end
  if elapsed >= 10 and elapsed <= 10000 then
    local fence = call('INCRBY', KEYS[2], 1000 * elapsed)
    call('PEXPIRE', KEYS[2], '86400000')
    return fence
  end
  local fence, last, ttl = now(), tonumber(call('GET', KEYS[2]) or 0), '86400000'
  if fence < last + 8 then
    fence, ttl = last + 8, '172800000'
  end
  call('SET', KEYS[2], string.format('%.0f', fence), 'PX', ttl)
  return fence
end
