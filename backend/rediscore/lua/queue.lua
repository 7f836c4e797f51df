-- What the scripts share that have to do with the queue. It stands where they include
-- it, below fence.lua and what is done most often, which does without.
--
-- KEYS[1]  the lock
-- KEYS[2]  the fence counter of the lock's slot
-- KEYS[3]  the queue: a sorted set of tokens by their tickets
-- KEYS[4]  the waiters: a hash of what is known of each token in the queue, and of
--          the last handover. It expires with the queue.
--
-- A waiter is "seen ttl inbox": when it last asked in microseconds, the TTL it
-- wants in ms, and the channel where it hears of its grant, with an "s" before a
-- shard channel and a "p" before another; it is empty if the waiter has none. It is
-- alive if it was seen in the last five seconds and somebody listens to its inbox.
-- Without an inbox it asks often, is alive if it was seen in the last two seconds (or
-- in its TTL if that is less: one that is not there costs no more than a lease), and is
-- served only when it asks: nobody else could tell whether it is there.
--
-- The last handover, in the field "handover", is "fence time token". The fields of
-- waiters begin with a colon.

-- grant gives the lock, which is free or the token's already, to a token. What is
-- left of a lease becomes the longer of what it is and the TTL. The counter is
-- written first: if that is not allowed, nothing has happened.
local function grant(holder, token, ttl)
  local fence = mint()
  if not holder then
    call('SET', KEYS[1], token, 'PX', ttl)
    return fence
  end
  local rest = call('PTTL', KEYS[1])
  if rest >= 0 and rest < tonumber(ttl) then
    call('PEXPIRE', KEYS[1], ttl)
  end
  return fence
end

local function subscribers(inbox)
  local command = inbox:sub(1, 1) == 's' and 'SHARDNUMSUB' or 'NUMSUB'
  local reply = redis.pcall('PUBSUB', command, inbox:sub(2))
  return tonumber(reply[2]) or 1 -- if it may not be asked
end

local function publish(try, inbox, message)
  local command = inbox:sub(1, 1) == 's' and 'SPUBLISH' or 'PUBLISH'
  try(command, inbox:sub(2), message)
end

-- note writes down what is known of a waiter. If its inbox is not the known one,
-- whether that may be published to is tried first, where nobody listens.
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

-- serve gives the lock, which is free, to the first waiter that is alive, and takes
-- those before it out of the queue. That waiter is told, unless it is the caller. It
-- returns the token of the waiter; '' if the waiter has to come for the lock; or
-- false if there is none.
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
      call('SET', KEYS[1], token, 'PX', ttl) -- the last that may be refused
      if inbox ~= '' and token ~= caller then
        publish(redis.pcall, inbox, handover)
      end
      return token
    end
    forget(token)
  end
end

-- served is serve for a lock that was found free, whether somebody waits or not.
local function served(caller)
  return call('EXISTS', KEYS[3]) == 1 and serve(caller)
end
