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
  if holder == ARGV[1] then
    local remaining = redis.call('PTTL', KEYS[1])
    if remaining >= 0 then
      redis.call('PEXPIRE', KEYS[1], math.max(remaining, tonumber(ARGV[2])))
    end
    return 1
  end
  -- A replica may be behind, so only a server that accepts writes may say "not held". Neither changes anything.
  if holder then
    redis.call('RENAMENX', KEYS[1], KEYS[1])
  else
    redis.call('DEL', KEYS[1])
  end
  return 0
end
