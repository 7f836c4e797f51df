-- How enqueue.lua and checkin.lua remove dead waiters also while the lock is held.
--
-- Each check-in looks at the hundred waiters behind a cursor, which is a rank, and moves the cursor on. While it
-- finds some that have been silent for a minute, it goes on, up to about a thousand. So all the dead
-- are found as long as one waiter is alive. If waiters come and die, and none is alive, an enqueue removes two once a
-- second, and so does each that follows as long as some are dead: the queue has those of the last minute. If they come
-- less often, the queue expires: a waiter keeps it for four to ten seconds when it comes, and for a minute when it
-- checks in.
--
-- Waiters may also be silent because the server was, or seem so because its clock was set. So
-- nobody is removed until enqueues and check-ins have come for a minute without a pause. The value
-- of the field "pulse" of the waiters is "last since": the time of the last of these, and the time
-- since which there was no pause of ten seconds.

local silence, pause, window = 60000000, 10000000, 1000

-- steady returns since when enqueues and check-ins have come without a pause.
local function steady(pulse, time)
  local last, since = (pulse or ''):match('^(%d+) (%d+)$')
  if last and math.abs(time - last) < pause then
    return tonumber(since)
  end
  return time
end

local function silent(waiter, time)
  local seen, inbox = (waiter or ''):match('^(%d+) %d+ %d+ (.*)$')
  return not seen or time - seen > silence and time - (called(inbox) or 0) > silence
end

-- sweep removes the silent among some waiters, at least one, and returns their number.
local function sweep(tokens, time)
  local fields, waiters = records(tokens)
  local dead, gone = {}, {}
  for i, token in ipairs(tokens) do
    if silent(waiters[i], time) then
      dead[#dead + 1], gone[#gone + 1] = token, fields[i]
    end
  end
  if #dead > 0 then
    call('ZREM', KEYS[3], unpack(dead))
    call('HDEL', KEYS[4], unpack(gone))
  end
  return #dead
end

-- tidy removes the fields of inboxes that are silent, if there are many, which a queue that is never empty would
-- keep. A user without the right keeps them.
local function tidy(waiting, time)
  local fields = redis.pcall('HLEN', KEYS[4])
  if type(fields) ~= 'number' or fields < 2 * waiting + window then
    return
  end
  local all, gone = redis.pcall('HGETALL', KEYS[4]), {}
  for i = 1, #all, 2 do
    if all[i]:sub(1, 1) == '@' and time - all[i + 1] > silence and #gone < window then
      gone[#gone + 1] = all[i]
    end
  end
  if #gone > 0 then
    call('HDEL', KEYS[4], unpack(gone))
  end
end

-- patrol sweeps the waiters behind the cursor.
local function patrol(cursor, time)
  local dead = 1
  for _, n in ipairs({100, window - 100}) do
    if dead > 0 then
      local tokens = call('ZRANGE', KEYS[3], cursor, cursor + n - 1)
      dead = #tokens > 0 and sweep(tokens, time) or 0
      cursor = cursor + #tokens - dead
      if #tokens < n then -- the end of the queue
        tidy(cursor, time)
        cursor, dead = 0, 0
      end
    end
  end
  call('HSET', KEYS[4], 'cursor', string.format('%.0f', cursor))
end
