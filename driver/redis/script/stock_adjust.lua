-- KEYS: the item. ARGV: operation, difference, units that must be available,
-- retention of the operation in ms.
forget()
local before = redis.call('HGET', KEYS[4], ARGV[1])
if before == ARGV[2] then return { 'done' } end
if before then return { 'other' } end
if not known then return { 'unknown' } end
if supply + tonumber(ARGV[2]) > MAX then return { 'full' } end
local refused = room(tonumber(ARGV[3]))
if refused then return refused end
supply = supply + tonumber(ARGV[2])
save()
redis.call('HSET', KEYS[4], ARGV[1], ARGV[2])
redis.call('ZADD', KEYS[5], text(now + tonumber(ARGV[4])), 'o' .. ARGV[1])
return { 'done' }
