-- enqueue grants the lock to a token as acquire.lua does. Otherwise it puts the token into the queue,
-- unless it is there already.
--
-- ARGV[1]  the token
-- ARGV[2]  the TTL in ms
-- ARGV[3]  the inbox
-- ARGV[4]  the old ticket of a waiter that has lost its place, or empty
-- ARGV[5]  for how many ms from now a message is not too late, or empty
--
-- Replies with {0, fence} if the lock was granted; with {1, ticket, rank from 0, time, holder,
-- the holder's remaining TTL in ms or -1 if it has none, the last handover or ''}; or with 'unswept'. The holder is
-- empty if the lock is free but reserved.
--
-- A ticket is the time, or the last one + 1 if that is larger: so waiters are served in the order of arrival also when
-- the clock is set back. If nobody waits and the lock is free, the last ticket is forgotten. A waiter that has lost its
-- place before the clock was set back then returns behind those that came meanwhile.
--
-- The value of the field "arrival" is "ticket looked": the last ticket, and when an enqueue last looked whether the
-- records expire soon, and whether the first waiters are dead. That is at most a second ago. If some were dead, the next
-- enqueue looks again. After a failover to a server whose clock is behind, it may be longer ago than it seems: if the
-- records expire in that second, those who wait return with their tickets.

local function enqueue()
  local token, ttl, inbox = ARGV[1], ARGV[2], ARGV[3]
  local holder = call('GET', KEYS[1]) or served(token)
  if holder == unswept then
    return 'unswept'
  elseif not holder or holder == token then
    return {0, grant(holder, token, ttl)}
  end

  local time = now()
  local waiters = call('HMGET', KEYS[4], ':' .. token, 'pulse', '@' .. inbox, 'arrival', 'handover')
  local rank = waiters[1] and call('ZRANK', KEYS[3], token)
  local ticket = rank and call('ZRANGE', KEYS[3], rank, rank, 'WITHSCORES')[2]
  local last, looked = (waiters[4] or ''):match('^(%d+) (%d+)$')
  last = tonumber(last or call('ZRANGE', KEYS[3], -1, -1, 'WITHSCORES')[2] or 0)
  local place = ticket or ARGV[4] ~= '' and ARGV[4] or string.format('%.0f', math.max(time, last + 1))
  last = string.format('%.0f ', math.max(last, tonumber(place)))
  local since = steady(waiters[2], time)
  local look = not looked or math.abs(time - looked) >= 1000000
  local rest = look and call('PTTL', KEYS[4])
  local expires = rest and rest < 5000
  if expires then
    rest = 10000
  end
  local patience = tonumber(ARGV[5] or '')
  local finish = patience and string.format('%.0f', time + patience * 1000) or '0'
  note(token, time, ttl, finish, inbox, waiters[3] and inbox, since, expires and rest,
    'arrival', last .. (look and string.format('%.0f', time) or looked))
  if not ticket then
    call('ZADD', KEYS[3], place, token)
  end
  rank = call('ZRANK', KEYS[3], token)
  if expires or rank == 0 then -- the queue may be new
    call('PEXPIRE', KEYS[3], rest or call('PTTL', KEYS[4]))
  end
  if look and time - since > silence and sweep(call('ZRANGE', KEYS[3], 0, 1), time) > 0 then
    call('HSET', KEYS[4], 'arrival', last .. '0')
    rank = call('ZRANK', KEYS[3], token)
  end
  return {1, math.floor(tonumber(place)), rank, time, holder, call('PTTL', KEYS[1]), waiters[5] or ''}
end
