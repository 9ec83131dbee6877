-- KEYS: the message. ARGV: owner, hash, keep_ms.
local owner = redis.call('HGET', KEYS[1], 'owner')
if owner and owner ~= ARGV[1] then return { 'lost' } end
redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'hash', ARGV[2], 'done', '1')
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return { 'done' }
