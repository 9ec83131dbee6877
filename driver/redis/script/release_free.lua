-- A lock that nobody awaits is released here, without the rest of the script.
-- KEYS and ARGV are those of release.lua.
local holder = redis.call('GET', KEYS[1])
if holder == ARGV[1] and redis.call('EXISTS', KEYS[3]) == 0 then
  redis.call('DEL', KEYS[1], KEYS[2])
  redis.call('ZREM', KEYS[6], KEYS[1])
  redis.call('ZREM', KEYS[7], string.match(KEYS[2], '^interlock:{(%w+)}:') .. ':' .. KEYS[1])
  redis.pcall('PUBLISH', CHANGES .. KEYS[1], '')
  return 1
end
