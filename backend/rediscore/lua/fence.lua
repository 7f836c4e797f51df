-- What the scripts share that grant a lock. KEYS are as in queue.lua.

local call = redis.call

-- now returns the time in microseconds.
local function now()
  local time = call('TIME')
  return time[1] * 1000000 + time[2]
end

-- mint returns the next fence of the slot: the larger of the counter + 8 and the
-- time in microseconds, since time has moved on even if the counter was lost with
-- everything else. A counter that was set to the time less than 10 ms ago, which
-- its TTL of a day tells, need not be compared again. The counter has a TTL from the
-- start, even if the user may not call all that is called here.
local function mint()
  local rest = call('PTTL', KEYS[2])
  if rest <= 86400000 - 10 or rest > 86400000 then
    local last = math.max(tonumber(call('GET', KEYS[2]) or 0), now() - 8)
    call('SET', KEYS[2], string.format('%.0f', last), 'PX', 86400000)
  end
  return call('INCRBY', KEYS[2], 8)
end
