-- Finds out whether a waiter was granted the lock, as checkin.lua does. ARGV and the reply are as there, with a
-- ballot at the end of the reply.

local ballot = survey()
return with(ballot, checkIn())
