-- What is stored at KEYS[1], the lock: the token of the holder. The token of a Client begins with "dlock1." and says
-- when it was made. If that may be long before the grant, because the holder has waited, "dlock1@", the time of the
-- grant in microseconds and a blank come before the token.

-- holds reports whether what is stored, if anything is, has the token.
local function holds(value, token)
  return value == token or value and value:match('^dlock1@%d+ (dlock1%..*)$') == token
end
