-- Functions of checkin.lua and enqueue.lua, which remove dead waiters also while the lock is held.
-- KEYS are as in queue.lua.
--
-- A waiter that checks in looks at the waiters before and after itself. If such a neighbour has
-- been silent for a minute, the waiters behind it are looked at too, up to 1,000. So all the dead
-- are found as long as one waiter is alive, and it costs no command to find none. If waiters come
-- and die, and none is alive, each that comes removes two: the queue has those of the last minute.
-- If they come less often, the queue expires: a waiter keeps it for ten seconds when it comes, and
-- for a minute when it checks in.
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
  local seen = (waiter or ''):match('^%d+')
  return not seen or time - seen > silence
end

-- sweep removes the silent waiters between two ranks, and returns their number.
local function sweep(first, last, time)
  local tokens = call('ZRANGE', KEYS[3], first, last)
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
