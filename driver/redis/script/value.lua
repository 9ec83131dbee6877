-- value_of returns the value of a lock, or false. A key of another type is no lock. After any
-- other error it is unknown who holds the lock: the script fails.
local function value_of(lock)
  local value = redis.pcall('GET', lock)
  if type(value) ~= 'table' or string.find(value.err, 'WRONGTYPE', 1, true) then return value end
  return redis.call('GET', lock)
end

