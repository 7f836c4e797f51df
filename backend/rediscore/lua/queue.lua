-- Functions of the scripts that use the queue. A script includes this file after fence.lua,
-- and after the frequent case that does not need it.
--
-- KEYS[1]  the lock
-- KEYS[2]  the fence counter of the lock's slot
-- KEYS[3]  the queue: a sorted set of tokens, scored by their tickets
-- KEYS[4]  the waiters: a hash with a field for each token in the queue, and one for the
--          last handover. It expires with the queue.
--
-- The field of a waiter is a colon and its token. The value is "seen ttl inbox": the time of
-- its last check-in in microseconds, the TTL that it wants in ms, and the channel for its
-- messages, after an "s" for a shard channel or a "p" for another. The inbox is empty if the
-- waiter has none.
--
-- A waiter with an inbox is alive if it has checked in during the last five seconds and its
-- inbox has a subscriber. A waiter without an inbox is alive if it has checked in during the
-- last two seconds, or during its TTL if that is shorter, so that a dead one costs no more
-- than a lease. It is granted the lock only when it checks in, because only that shows that
-- it is still there.
--
-- The value of the field "handover" is "fence time token".

-- grant gives a token the lock, which is free or its own, for at least ttl. It never shortens
-- a lease. The counter is written first, so that nothing has happened if that fails.
local function grant(holder, token, ttl)
  local fence = mint()
  if not holder then
    call('SET', KEYS[1], token, 'PX', ttl)
    return fence
  end
  local remaining = call('PTTL', KEYS[1])
  if remaining >= 0 and remaining < tonumber(ttl) then
    call('PEXPIRE', KEYS[1], ttl)
  end
  return fence
end

local function subscribers(inbox)
  local command = inbox:sub(1, 1) == 's' and 'SHARDNUMSUB' or 'NUMSUB'
  local reply = redis.pcall('PUBSUB', command, inbox:sub(2))
  return tonumber(reply[2]) or 1 -- 1 if PUBSUB is not allowed
end

local function publish(try, inbox, message)
  local command = inbox:sub(1, 1) == 's' and 'SPUBLISH' or 'PUBLISH'
  try(command, inbox:sub(2), message)
end

-- note records a waiter. If its inbox is new, note first publishes to a channel without
-- subscribers, so that a user without the right to publish gets the error now.
local function note(token, time, ttl, inbox, known)
  if inbox ~= '' and inbox ~= known then
    publish(call, inbox .. ':', '')
  end
  call('HSET', KEYS[4], ':' .. token, string.format('%.0f ', time) .. ttl .. ' ' .. inbox)
  call('PEXPIRE', KEYS[4], 60000)
end

local function forget(token)
  call('ZREM', KEYS[3], token)
  call('HDEL', KEYS[4], ':' .. token)
end

-- serve gives the lock, which is free, to the first waiter that is alive, and removes the
-- waiters before it from the queue. It sends that waiter a message, unless it is the caller.
-- It returns the waiter's token; '' if the lock is reserved for a waiter without an inbox; or
-- false if there is no waiter.
local function serve(caller)
  local time = now()
  while true do
    local token = call('ZRANGE', KEYS[3], 0, 0)[1]
    if not token then
      return false
    end
    local waiter = call('HGET', KEYS[4], ':' .. token) or ''
    local seen, ttl, inbox = waiter:match('^(%d+) (%d+) (.*)$')
    local ago = seen and math.abs(time - seen) -- the clock may have been set back
    if seen and inbox == '' and token ~= caller and ago < math.min(2000000, ttl * 1000) then
      return ''
    end
    if seen and (token == caller or inbox ~= '' and ago < 5000000 and subscribers(inbox) > 0) then
      local handover = string.format('%.0f %.0f ', mint(), time) .. token
      call('HSET', KEYS[4], 'handover', handover)
      forget(token)
      call('SET', KEYS[1], token, 'PX', ttl) -- the last call that may fail
      if inbox ~= '' and token ~= caller then
        publish(redis.pcall, inbox, handover)
      end
      return token
    end
    forget(token)
  end
end

-- served is serve if there is a queue, for a lock that was found free.
local function served(caller)
  return call('EXISTS', KEYS[3]) == 1 and serve(caller)
end
