-- What is stored, and how the queue is served. Numbers that do not change are written as strings: a server takes a
-- fifth of a microsecond to make a string of a number.
--
-- KEYS[1]  the lock
-- KEYS[2]  the fence counter
-- KEYS[3]  the queue: a sorted set of tokens, scored by their tickets
-- KEYS[4]  the waiters: a hash with these fields. It expires with the queue, or later.
--
--   ":TOKEN"    of a waiter, "seen ttl finish inbox": the time of its last call in microseconds, the TTL that it wants
--               in ms, the time in microseconds after which a message would come too late for it, or 0, and the channel
--               for its messages, after an "s" for a shard channel or a "p" for another. The inbox is empty if the waiter
--               has none
--   "@INBOX"    the time of the last call of any waiter with this inbox: one checks in for all. Waiters that vote
--               check in each for itself
--   "handover"  the last handover, "fence time token", which is also the message
--   "arrival"   see enqueue.lua
--   "pulse", "cursor"  see sweep.lua
--
-- A waiter with an inbox is alive if there was such a call during the last five seconds, and its
-- inbox has a subscriber. A waiter without an inbox is alive if it has called during the
-- last two seconds, or during its TTL if that is shorter, so that a dead one costs no more
-- than a lease. It is granted the lock only when it checks in, because only that shows that
-- it is still there. After its finish, a waiter is not alive, unless it calls itself.

local call, unpack = redis.call, table.unpack or unpack

-- subscribers counts the subscribers of an inbox. The reply of PUBLISH would not do: it counts those of patterns too.
local function subscribers(inbox)
  local command = inbox:sub(1, 1) == 's' and 'SHARDNUMSUB' or 'NUMSUB'
  local reply = redis.pcall('PUBSUB', command, inbox:sub(2))
  return tonumber(reply[2]) or 1 -- 1 if PUBSUB is not allowed
end

local function publish(try, inbox, message)
  local command = inbox:sub(1, 1) == 's' and 'SPUBLISH' or 'PUBLISH'
  try(command, inbox:sub(2), message)
end

-- note records a waiter, and since when the calls of waiters have come without a pause (see
-- sweep.lua), and other fields. The records expire after rest ms, if it is given. If its inbox is new, note first
-- publishes to a channel without subscribers, so that a user without the right to publish gets the error now.
local function note(token, time, ttl, finish, inbox, known, since, rest, ...)
  if inbox ~= '' and inbox ~= known then
    publish(call, inbox .. ':', '')
  end
  local seen = string.format('%.0f', time)
  local fields = {':' .. token, seen .. ' ' .. ttl .. ' ' .. finish .. ' ' .. inbox, 'pulse', seen .. string.format(' %.0f', since), ...}
  if inbox ~= '' and not KEYS[5] then -- it does not vote
    fields[#fields + 1], fields[#fields + 2] = '@' .. inbox, seen
  end
  call('HSET', KEYS[4], unpack(fields))
  if rest then
    call('PEXPIRE', KEYS[4], rest)
  end
end

-- called returns the time of the last call of any waiter with an inbox, or false.
local calls = {[''] = false}
local function called(inbox)
  if calls[inbox] == nil then
    calls[inbox] = call('HMGET', KEYS[4], '@' .. inbox)[1]
  end
  return calls[inbox]
end

-- records returns the fields of waiters, and their values.
local function records(tokens)
  local fields = {}
  for i, token in ipairs(tokens) do
    fields[i] = ':' .. token
  end
  return fields, call('HMGET', KEYS[4], unpack(fields))
end

-- dequeue removes the first n waiters, which have these fields.
local function dequeue(n, fields)
  if n > 0 then
    call('ZREMRANGEBYRANK', KEYS[3], '0', n - 1)
    call('HDEL', KEYS[4], unpack(fields, 1, n))
  end
end

-- unswept is returned by serve if it has removed 5,000 dead waiters, and more are in the queue.
-- The script has done nothing else then. It replies with 'unswept', and the caller repeats the
-- call, so that the server can serve others between.
local unswept = true

-- serve gives the lock, which is free, to the first waiter that is alive, and removes the
-- waiters before it from the queue. It sends that waiter a message, unless it is the caller.
-- It returns the waiter's token; '' if the lock is reserved for a waiter without an inbox;
-- false if there is no waiter; or unswept. The first waiter is read by whoever calls serve.
--
-- A full server refuses commands that take memory, unless the script has written before. So the waiter leaves the
-- queue first, which takes none. If the rest fails, the waiter has lost its place, and returns with its old ticket.
local function serve(caller, tokens)
  local time, listeners = now(), {}
  local function listens(inbox)
    listeners[inbox] = listeners[inbox] or subscribers(inbox)
    return listeners[inbox] > 0
  end
  local function near(seen, limit)
    return seen and math.abs(time - seen) < limit -- the clock may have been set back
  end
  for batch = 0, 50 do -- of a hundred waiters; but the first waiter is alone, since it is rarely dead
    tokens = batch == 0 and tokens or call('ZRANGE', KEYS[3], 0, 99)
    if #tokens == 0 then
      return false
    end
    local fields, waiters = records(tokens)
    for i, token in ipairs(tokens) do
      local seen, ttl, finish, inbox = (waiters[i] or ''):match('^(%d+) (%d+) (%d+) (.*)$')
      if seen and token ~= caller and finish ~= '0' and time > tonumber(finish) then
        seen = nil
      end
      if seen and inbox == '' and token ~= caller and near(seen, math.min(2000000, ttl * 1000)) then
        dequeue(i - 1, fields)
        return ''
      end
      if seen and (token == caller or inbox ~= '' and (near(seen, 5000000) or near(called(inbox), 5000000)) and listens(inbox)) then
        dequeue(i, fields)
        local handover = string.format('%.0f %.0f ', mint(), time) .. token
        call('HSET', KEYS[4], 'handover', handover)
        call('SET', KEYS[1], token, 'PX', ttl) -- the last call that may fail
        if inbox ~= '' and token ~= caller then
          publish(redis.pcall, inbox, handover)
        end
        return token
      end
    end
    dequeue(#tokens, fields)
  end
  return unswept
end

-- served is serve if there is a queue, for a lock that was found free.
local function served(caller)
  local first = call('ZRANGE', KEYS[3], '0', '0')
  return #first > 0 and serve(caller, first)
end
