-- KEYS: the lock. ARGV: owner. Deletes the lock if owner has it.
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
