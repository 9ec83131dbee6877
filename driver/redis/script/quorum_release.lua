-- KEYS: the lock. ARGV: owner. Deletes the lock if owner holds it.
return redis.call('GET', KEYS[1]) == ARGV[1] and redis.call('DEL', KEYS[1]) or 0
