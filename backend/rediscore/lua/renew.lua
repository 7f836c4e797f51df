-- renew extends the lease of a token to at least a TTL from now. It never shortens the lease. It also
-- writes if it need not extend the lease, because WAIT confirms only what its own connection wrote.
--
-- KEYS[1]  the lock
-- ARGV[1]  the token
-- ARGV[2]  the TTL in ms
--
-- Replies with 1 if the token holds the lock, else with 0.

local function renew()
  local holder = redis.call('GET', KEYS[1])
  if holder ~= ARGV[1] then
    prove(holder)
    return 0
  end
  local remaining = redis.call('PTTL', KEYS[1])
  if remaining >= 0 then
    redis.call('PEXPIRE', KEYS[1], math.max(remaining, tonumber(ARGV[2])))
  end
  return 1
end
