-- prove fails on a replica, and changes nothing. A replica may be behind, so only a server that accepts writes may say
-- "not held".
local function prove(holder)
  if holder then
    redis.call('RENAMENX', KEYS[1], KEYS[1])
  else
    redis.call('DEL', KEYS[1])
  end
end
