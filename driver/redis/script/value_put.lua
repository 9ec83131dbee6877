-- KEYS: the value. ARGV: counter, sub, token, source, ahead_us, data. The value is
-- a mark with data beside it. version orders the writes of one token, and continues
-- above seen ones after a loss of the last writes.
local refused = enter(KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4], '0', ARGV[5])
if refused then return refused end
local version = math.max((tonumber(redis.call('HGET', KEYS[1], 'version')) or 0) + 1, now_us)
redis.call('HSET', KEYS[1], 'data', ARGV[6], 'version', string.format('%.0f', version))
redis.pcall('PUBLISH', KEYS[1], '')
return { 'entered' }
