-- KEYS: the lock. ARGV: owner, ttl, 1 to return the uptime. Does on one of several nodes what
-- plain_acquire.lua does. Returns the holder, its time to live, the server's clock in milliseconds
-- (0 if the lock was free), and the server's uptime in seconds, or -1: a node that may have
-- forgotten a vote must not vote again.
local up = -1
if ARGV[3] == '1' then up = tonumber(string.match(redis.call('INFO', 'server'), 'uptime_in_seconds:(%d+)')) end
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
  redis.pcall('PUBLISH', CHANGES .. KEYS[1], '')
  return { ARGV[1], tonumber(ARGV[2]), 0, up }
end
local holder = redis.call('GET', KEYS[1])
if holder == ARGV[1] then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
return { holder, redis.call('PTTL', KEYS[1]), now, up }
