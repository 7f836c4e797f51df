-- The usual case of acquire-plain.lua: the lock is free, nobody waits, and the clock is ahead of the last fence. Then the
-- fence is the time, as fence.lua has it. The functions that follow are not made for this case: they would be a tenth of
-- the server's work.

local free = redis.call('EXISTS', KEYS[1], KEYS[3]) == 0
if free then
  local time = redis.call('TIME')
  local clock = tonumber(time[1]) * 1000000 + tonumber(time[2])
  if (tonumber(redis.call('GET', KEYS[2]) or 0) or clock) + 8 <= clock then
    redis.call('SET', KEYS[2], string.format('%.0f', clock), 'PX', '86400000')
    redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
    return clock
  end
end
