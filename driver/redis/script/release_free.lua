-- A lock that nobody awaits is released here, without the rest of the script.
-- KEYS and ARGV are those of release.lua.
local holder = redis.call('GET', KEYS[1])
local first -- in the queue, and its place, taken out of it
if holder == ARGV[1] then
  first = redis.call('ZPOPMIN', KEYS[3])
  if not first[1] then
    redis.call('DEL', KEYS[1], KEYS[2])
    redis.call('ZREM', KEYS[6], KEYS[1])
    redis.pcall('PUBLISH', CHANGES .. KEYS[1], '')
    return 1
  end
end
