-- KEYS: the record. ARGV: counter, sub, token, source, strict, ahead_us, then for
-- each write "set" or "delete", the field, and its value.
local refused = enter(KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6])
if refused then return refused end
for i = 7, #ARGV, 3 do
  if ARGV[i] == 'delete' then redis.call('HDEL', KEYS[1], ARGV[i + 1])
  else redis.call('HSET', KEYS[1], ARGV[i + 1], ARGV[i + 2]) end
end
return { 'entered' }
