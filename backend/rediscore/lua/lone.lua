-- The usual case of acquire-plain.lua: the lock is free, nobody waits, and the last fence is ahead of the clock by less than a
-- millisecond, or not at all. The fence and the counter's TTL are those of fence.lua. The functions that follow are not made
-- for this case: they would be a tenth of the server's work.

local free = redis.call('EXISTS', KEYS[1], KEYS[3]) == 0
if free then
  local time = redis.call('TIME')
  local clock = tonumber(time[1]) * 1000000 + tonumber(time[2])
  local fence = math.max(tonumber(redis.call('GET', KEYS[2]) or 0) + 8, clock)
  if fence <= clock + 1000 then
    redis.call('SET', KEYS[2], string.format('%.0f', fence), 'PX', fence == clock and '86400000' or '86400001')
    redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
    return fence
  end
end
