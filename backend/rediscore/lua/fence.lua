-- Functions of the scripts that grant a lock. KEYS are as in queue.lua.

local call = redis.call

-- now returns the time in microseconds.
local function now()
  local time = call('TIME')
  return time[1] * 1000000 + time[2]
end

-- count sets the fence counter of the slot, and returns it. The counter expires a day after the
-- clock has reached it, so that no fence is made twice, however far ahead of the clock it is. More
-- exactly, that is a day after the begin of the 10 ms in which it lies: its window. So its TTL is
-- more than a day as long as the clock has not reached its window, and then shows how long ago the
-- window began.
local function count(fence, time)
  local window = fence - fence % 10000
  local ttl = 86400000 + math.ceil((window - time) / 1000)
  call('SET', KEYS[2], string.format('%.0f', fence), 'PX', math.max(ttl, 1))
  return fence
end

-- mint returns the next fence of the slot: the last one + 8, or the time in microseconds if
-- that is larger. Time has moved on even if the counter was lost with all data.
--
-- Within its window, the counter is raised by 8. Later, up to 10 s, the time is that of its window
-- and what has passed since. So the counter keeps up with the clock and never leads it, and the
-- clock, which costs more, is read after pauses only. While a counter leads, because the clock was
-- set back, the clock is read each time.
local function mint()
  local passed = 86400000 - call('PTTL', KEYS[2])
  if passed >= 0 and passed < 10 then
    return call('INCRBY', KEYS[2], '8')
  end
  local last, time = tonumber(call('GET', KEYS[2]) or 0)
  if passed >= 10 and passed <= 10000 then
    time = last - last % 10000 + 1000 * passed
  else
    time = now()
  end
  return count(math.max(last + 8, time), time)
end
