-- KEYS: the message. ARGV: owner, hash, lease_ms. The message is a hash: owner and
-- hash as given, done only once it is. Its time to live is the lease, and then the
-- retention.
local seen = redis.call('HMGET', KEYS[1], 'owner', 'hash', 'done')
if seen[2] and seen[2] ~= ARGV[2] then return { 'other' } end
if seen[3] then return { 'done' } end
if seen[1] and seen[1] ~= ARGV[1] then return { 'held', seen[1] } end
redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'hash', ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return { 'claimed' }
