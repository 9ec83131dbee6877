-- KEYS: the lock. ARGV: owner, ttl. What plain_acquire.lua does, on one of several
-- nodes. Returns the holder, its time to live, the server's clock in milliseconds,
-- and for how many seconds the server has been up: a node that may have forgotten
-- somebody's vote must not give it away again.
local set = redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])
if set then redis.pcall('PUBLISH', CHANGES .. KEYS[1], '') end
local holder = redis.call('GET', KEYS[1])
if holder == ARGV[1] and not set then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
local up = string.match(redis.call('INFO', 'server'), 'uptime_in_seconds:(%d+)')
return { holder, redis.call('PTTL', KEYS[1]), now, tonumber(up) }
