-- Functions of the scripts that vote. Their fences follow another rule, and a reply has a ballot: {age of the store in
-- microseconds, store, time, ...}.
--
-- KEYS[5]  the marker "store birth": the server's replication ID, and the time in microseconds when the
--          marker was written. It never expires.
--
-- A server has another replication ID after a restart or a promotion. So the marker is written
-- again then, and after the loss of all data. It is also written again if the clock was set back to
-- before it: the age would be 0 for as long as the step.

local floor, time = 0

-- mint returns the next fence of the slot: the floor, but at least the time and at most a second
-- more; or the last fence + 8 if that is larger.
local function mint()
  time = time or now()
  local last = tonumber(call('GET', KEYS[2]) or 0)
  return count(math.max(last + 8, math.min(math.max(floor, time), time + 1000000)), time)
end

-- survey returns a ballot. A script calls it before it grants anything, so that nothing has happened if it fails.
local function survey(...)
  time = now()
  local store = assert(call('INFO', 'replication'):match('master_replid:(%w+)'), 'no replication ID')
  local known, birth = (call('GET', KEYS[5]) or ''):match('^(%w+) (%d+)$')
  if known ~= store or time < tonumber(birth) then
    birth = time
    call('SET', KEYS[5], string.format('%s %.0f', store, time))
  end
  return {time - birth, store, time, ...}
end

-- with puts a ballot at the end of a reply.
local function with(ballot, reply)
  if reply ~= 'unswept' then
    reply[#reply + 1] = ballot
  end
  return reply
end
