-- KEYS: the lock. ARGV: owner, ttl. SET NX PX, which succeeds again after its own
-- earlier success. Returns the holder (owner if it holds it now), its time to live,
-- and the server's clock in milliseconds.
local set = redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])
if set then redis.pcall('PUBLISH', CHANGES .. KEYS[1], '') end
local holder = redis.call('GET', KEYS[1])
if holder == ARGV[1] and not set then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
return { holder, redis.call('PTTL', KEYS[1]), now }
