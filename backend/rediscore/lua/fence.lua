-- Functions of the scripts that grant a lock. KEYS are as in queue.lua.

local call = redis.call

-- now returns the time in microseconds.
local function now()
  local time = call('TIME')
  return time[1] * 1000000 + time[2]
end

-- mint returns the next fence of the slot: the counter + 8, or the time in microseconds if
-- that is larger. Time has moved on even if the counter was lost with all data. The counter
-- is not compared with the time if it was set less than 10 ms ago, which its TTL of a day
-- shows. It is created with a TTL, so that it expires even if INCRBY is not allowed.
local function mint()
  local remaining = call('PTTL', KEYS[2])
  if remaining <= 86400000 - 10 or remaining > 86400000 then
    local last = math.max(tonumber(call('GET', KEYS[2]) or 0), now() - 8)
    call('SET', KEYS[2], string.format('%.0f', last), 'PX', 86400000)
  end
  return call('INCRBY', KEYS[2], 8)
end
