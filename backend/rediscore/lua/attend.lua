-- Finds out whether a waiter was granted the lock, as checkin.lua does, and the age of the store.
--
-- KEYS     see ballot.lua
-- ARGV[1]  the token
-- ARGV[2]  the inbox
--
-- Replies as checkin.lua, with a ballot at the end: {age, store, time}.

--include ballot.lua

local ballot = survey()

local function checkIn()
--include checkin.lua
end

local reply = checkIn()
if reply ~= 'unswept' then
  reply[#reply + 1] = ballot
end
return reply
