-- KEYS: the lock. ARGV: owner, ttl. Does on one of several nodes what plain_acquire.lua does.
-- Returns the holder, its time to live, the server's clock in milliseconds (0 if owner holds the
-- lock now), and the server's uptime in seconds if so: a node that may have forgotten a vote must
-- not vote again.
local holder = ARGV[1]
if not redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
  holder = redis.call('GET', KEYS[1])
  if holder == ARGV[1] then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
end
if holder == ARGV[1] then
  return { holder, tonumber(ARGV[2]), 0, tonumber(string.match(redis.call('INFO', 'server'), 'uptime_in_seconds:(%d+)')) }
end
local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
return { holder, redis.call('PTTL', KEYS[1]), now, 0 }
