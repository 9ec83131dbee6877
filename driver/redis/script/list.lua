-- KEYS: the index of names of one slot. ARGV: min and max of the names, how many at
-- most, then the indexes of other slots of the same server. Returns names, sorted
-- within each slot.
local names = redis.call('ZRANGEBYLEX', KEYS[1], ARGV[1], ARGV[2], 'LIMIT', 0, ARGV[3])
for i = 4, #ARGV do
  for _, name in ipairs(redis.call('ZRANGEBYLEX', ARGV[i], ARGV[1], ARGV[2], 'LIMIT', 0, ARGV[3])) do
    names[#names + 1] = name
  end
end
return names
