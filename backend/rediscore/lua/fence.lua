-- How fences are made. Beside the fence counter of a server that was promoted is a marker "store birth", as in
-- ballot.lua: the server's replication ID, and the time when the marker was written. Its name is the counter's, with
-- "birth" in place of "fence".

local call = redis.call

-- now returns the time in microseconds.
local function now()
  local time = call('TIME')
  return time[1] * 1000000 + time[2]
end

-- count sets the fence counter of the slot, and returns it. The counter expires a day after the
-- clock has reached it, so that no fence is made twice, however far ahead of the clock it is. If it is marked, it
-- expires after two days on this server, and earlier on a replica. So the TTL shows how long ago this server has
-- set it, which a replica that is promoted has not.
local function count(fence, time, marked)
  local ttl = math.max(86400000 + math.ceil((fence - time) / 1000), 1)
  call('SET', KEYS[2], string.format('%.0f', fence), 'PX', ttl)
  if marked and ttl < 172800000 and redis.set_repl then
    redis.set_repl(redis.REPL_NONE)
    redis.pcall('PEXPIRE', KEYS[2], '172800000')
    redis.set_repl(redis.REPL_ALL)
  end
  return fence
end

-- mint returns the next fence of the slot: the last one + 8, or the time in microseconds if
-- that is larger. Time has moved on even if the counter was lost with all data.
--
-- For 100 ms the counter is raised by 8, and the clock is not read. A server that has not set the counter for a
-- second may be a new master. The former master of one that was promoted may grant on for a while, so its fences
-- begin 10 s ahead of the clock.
local function mint()
  local passed = 172800000 - call('PTTL', KEYS[2]) -- ms
  if passed < 100 then
    return call('INCRBY', KEYS[2], '8')
  end
  local time = now()
  local fence = math.max(tonumber(call('GET', KEYS[2]) or 0) + 8, time)
  local info = passed > 1000 and redis.set_repl and redis.pcall('INFO', 'replication')
  if type(info) == 'string' and info:match('master_replid2:0*[1-9a-f]') then -- it was promoted, and the user has the right
    local store, marker = info:match('master_replid:(%w+)'), KEYS[2]:gsub('fence$', 'birth')
    local value = redis.pcall('GET', marker) -- which is refused while the slot moves to another master
    local known, birth = (type(value) == 'string' and value or ''):match('^(%w+) (%d+)$')
    if known ~= store then
      birth = time
      redis.pcall('SET', marker, string.format('%s %.0f', store, birth), 'PX', '259200000')
    end
    fence = math.max(fence, birth + 10000000)
  end
  return count(fence, time, true)
end
