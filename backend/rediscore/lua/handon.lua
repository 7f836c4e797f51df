-- handOn gives the lock to the first waiter: a lock that is free, or held by a token that releases it. The first in the
-- queue is read by whoever calls handOn. It returns false if it has only removed dead waiters: see serve.
local function handOn(held, first)
  local ok, next = pcall(serve, '', first)
  if ok and next == unswept then
    return false
  end
  if ok and not next then -- the queue is empty
    call('DEL', KEYS[4])
  end
  if held and (not ok or not next or next == '') then -- it failed, or no waiter can be given the lock
    call('DEL', KEYS[1])
  end
  return true
end
