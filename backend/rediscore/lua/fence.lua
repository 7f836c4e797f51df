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
-- The counter's TTL shows how long ago its window began, which is 10 ms long: a window begins
-- with a TTL of a day, at a multiple of 10 ms. Within it, the counter is raised by 8. Later, up to
-- 10 s, it is set to the begin of the present window: that is the begin of its last one, which
-- is the counter cut to 10 ms, and the time that has passed. So the counter keeps up with the
-- clock and never leads it, and the clock, which costs more, is read after pauses only. A counter
-- that leads, because the clock was set back, has a TTL of two days: the clock is read each time.
local function mint()
  local passed = 86400000 - call('PTTL', KEYS[2])
  if passed >= 0 and passed < 10 then
    return call('INCRBY', KEYS[2], '8')
  end
  local last, fence, ttl = tonumber(call('GET', KEYS[2]) or 0)
  if passed >= 10 and passed <= 10000 then
    local rest = passed % 10
    fence = math.max(last - last % 10000 + 1000 * (passed - rest), last + 8)
    ttl = 86400000 - rest
  else
    fence = now()
    ttl = 86400000 - math.floor(fence % 10000 / 1000)
  end
  if fence < last + 8 then
    fence, ttl = last + 8, 172800000
  end
  call('SET', KEYS[2], string.format('%.0f', fence), 'PX', ttl)
  return fence
end
