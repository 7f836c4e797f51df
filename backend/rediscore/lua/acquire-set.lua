-- Grants all locks of a set, or none, and has no other effect then. A lock is granted if its token already holds it, or if
-- it is free and nobody is in its queue. The locks are set by the command that has set the counter, so none can fail alone.
--
-- KEYS  for each lock what acquire.lua has. All have the same fence counter
-- ARGV  for each lock a token and a TTL in ms
--
-- Replies with the fence of the first grant; that of each other one is 8 larger than the one before. If another token holds
-- a lock, replies with a list: for each lock what acquire.lua replies if another token holds it, else false. Replies with 0
-- if a lock is free but others are in its queue, alive or dead: acquire.lua serves them.

local replies, ttls, refused = {}, {}, false
for i = 1, #ARGV, 2 do
  local lock, queue, waiters = 2 * i - 1, 2 * i + 1, 2 * i + 2
  local free = redis.call('EXISTS', KEYS[lock], KEYS[queue]) == 0
  local holder = not free and redis.call('GET', KEYS[lock])
  if not holder and not free then
    return 0
  end
  local rest = holder and redis.call('PTTL', KEYS[lock]) or 0
  local other = holder and holder ~= ARGV[i]
  refused = refused or other
  replies[#replies + 1] = other and {holder, rest, redis.pcall('HMGET', KEYS[waiters], 'handover')[1]}
  ttls[i] = rest ~= -1 and math.max(rest, tonumber(ARGV[i + 1])) -- a lease that never ends stays so
end
if refused then
  return replies
end

local first = mint()
if #ARGV > 2 then
  count(first + 4 * #ARGV - 8)
end
for i = 1, #ARGV, 2 do
  if ttls[i] then
    redis.call('SET', KEYS[2 * i - 1], ARGV[i], 'PX', ttls[i])
  end
end
return first
