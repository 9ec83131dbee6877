-- KEYS: the message. ARGV: owner.
local seen = redis.call('HMGET', KEYS[1], 'owner', 'done')
if seen[1] == ARGV[1] and not seen[2] then redis.call('DEL', KEYS[1]) end
return { 'forgotten' }
