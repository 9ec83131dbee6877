-- KEYS: the lock. ARGV: owner. Deletes the lock if owner holds it.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.pcall('PUBLISH', CHANGES .. KEYS[1], '')
return redis.call('DEL', KEYS[1])
