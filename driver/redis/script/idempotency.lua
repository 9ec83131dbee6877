-- Common part of the scripts of requests. A record is a hash; times are
-- microseconds since 1970 by the server's clock, exact below 2^53. due orders the
-- unfinished records by the end of their lease.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local function text(number) return string.format('%.0f', number) end

-- lend gives a record's owner a lease from now on.
local function lend(record, due, member, lease_us)
  local until_us = text(now + tonumber(lease_us))
  redis.call('HSET', record, 'until', until_us)
  redis.call('ZADD', due, until_us, member)
end
