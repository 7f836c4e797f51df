-- How fences are made, and leases granted. lone.lua has the usual case of a grant.
--
-- This file, lone.lua, and those that have "plain" in their names, have only what all servers and proxies accept: Lua that means the
-- same from 5.1 to 5.4, commands named by literals, and keys that are literally KEYS[i].
--
-- KEYS[1]  the lock
-- KEYS[2]  the fence counter

local floor, clock = 0

-- now returns the time in microseconds. It is read once.
local function now()
  if not clock then
    local time = redis.call('TIME')
    clock = tonumber(time[1]) * 1000000 + tonumber(time[2])
  end
  return clock
end

-- count sets the fence counter, and returns it. The counter expires a day after the clock has reached it, so that no
-- fence is made twice, however far ahead of the clock it is.
local function count(fence)
  assert(fence <= 9007199254740992, 'the fence counter is too large')
  local ttl = math.max(86400000 + math.ceil((fence - now()) / 1000), 1)
  redis.call('SET', KEYS[2], string.format('%.0f', fence), 'PX', string.format('%.0f', ttl))
  return fence
end

-- mint returns the next fence: the last one + 8, or the time in microseconds if that is larger. Time has moved on even
-- if the counter was lost with all data. A vote may have a floor, of which what is more than a second ahead of the
-- clock does not count.
local function mint()
  local time = now()
  local least = math.min(math.max(floor, time), time + 1000000)
  return count(math.max(tonumber(redis.call('GET', KEYS[2]) or 0) + 8, least))
end

-- grant gives a token the lock, which is free or its own, for at least ttl. It never shortens
-- a lease. The counter is written first, so that nothing has happened if that fails.
local function grant(holder, token, ttl)
  local fence = mint()
  local remaining = holder and redis.call('PTTL', KEYS[1])
  if not holder then
    redis.call('SET', KEYS[1], token, 'PX', ttl)
  elseif remaining >= 0 and remaining < tonumber(ttl) then
    redis.call('PEXPIRE', KEYS[1], ttl)
  end
  return fence
end
