-- checkIn finds out whether a waiter was granted the lock. It records that the waiter is alive, and its
-- inbox. If the lock is free, the first waiter in the queue gets it before that; no other
-- lease is created or extended.
--
-- ARGV[1]  the token
-- ARGV[2]  the inbox
--
-- Replies as enqueue.lua: with {0, fence} if the lock is granted now, or with {1, ...} if the token waits; with {4, ...}
-- in place of that if nobody listens to the inbox. If the lock was granted before, with {2, fence, time of the grant, time}; if the token is not in the queue, with {3}.

local function checkIn()
  local token, inbox = ARGV[1], ARGV[2]
  local held = call('GET', KEYS[1])
  local holder = held or served(token)
  if holder == unswept then
    return 'unswept'
  end
  local time = now()
  if holder == token then
    local handover = call('HMGET', KEYS[4], 'handover')[1] or ''
    local fence, granted, to = handover:match('^(%d+) (%d+) (.*)$')
    if to ~= token then
      return {3}
    elseif not held then
      return {0, tonumber(fence)}
    end
    if inbox ~= '' and not KEYS[5] then -- others with this inbox may wait until replicas have the grant
      call('HSET', KEYS[4], '@' .. inbox, string.format('%.0f', time))
    end
    call('PEXPIRE', KEYS[3], '60000')
    call('PEXPIRE', KEYS[4], '60000') -- WAIT confirms only what its own connection wrote, and all before
    return {2, tonumber(fence), tonumber(granted), time}
  end

  local rank = call('ZRANK', KEYS[3], token)
  local waiters = call('HMGET', KEYS[4], ':' .. token, 'pulse', 'cursor', 'handover')
  local ttl, finish, known = (waiters[1] or ''):match('^%d+ (%d+) (%d+) (.*)$')
  if not rank or not ttl then
    return {3}
  end
  local since = steady(waiters[2], time)
  note(token, time, ttl, finish, inbox, known, since, 60000)
  call('PEXPIRE', KEYS[3], '60000')
  if time - since > silence then
    patrol(tonumber(waiters[3] or 0), time)
    rank = call('ZRANK', KEYS[3], token)
  end
  local ticket = call('ZRANGE', KEYS[3], rank, rank, 'WITHSCORES')[2]
  local deaf = inbox ~= '' and subscribers(inbox) == 0
  return {deaf and 4 or 1, math.floor(tonumber(ticket)), rank, time, holder or '', call('PTTL', KEYS[1]), waiters[4] or ''}
end
