-- Functions of the scripts that vote. A reply has a ballot: {age of the store in microseconds, store, time, ...}.
--
-- KEYS[5]  the marker "store birth": the server's replication ID, and the time in microseconds when the
--          marker was written. It never expires.
--
-- A server has another replication ID after a restart or a promotion. So the marker is written
-- again then, and after the loss of all data. It is also written again if the clock was set back to
-- before it: the age would be 0 for as long as the step.

local call = redis.call

-- survey returns a ballot. A script calls it before it grants anything, so that nothing has happened if it fails.
local function survey(...)
  local time = now()
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
