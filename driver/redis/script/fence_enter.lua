-- KEYS: the mark, then those written. ARGV: counter, sub, token, source, strict,
-- ahead_us, then for each write "set" and its value or "delete" and nothing.
local refused = enter(KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6])
if refused then return refused end
for i = 2, #KEYS do
  local value = ARGV[7 + (i - 2) * 2 + 1]
  if ARGV[7 + (i - 2) * 2] == 'delete' then redis.call('DEL', KEYS[i]) else redis.call('SET', KEYS[i], value) end
end
return { 'entered' }
