-- KEYS: values (hash), index (sorted set), revision. ARGV, for each swap: key, revision, 1 if
-- it deletes, value. A value is stored after its revision and a space.
for i = 1, #ARGV, 4 do
  local stored = redis.call('HGET', KEYS[1], ARGV[i])
  if (stored and string.match(stored, '^%d+') or '0') ~= ARGV[i + 1] then return '0' end
end
-- The clock prevents the reuse of revisions after a loss of data.
local time = redis.call('TIME')
local revision = string.format('%.0f', math.max((tonumber(redis.call('GET', KEYS[3])) or 0) + 1, time[1] * 1000000 + time[2]))
for i = 1, #ARGV, 4 do
  if ARGV[i + 2] == '1' then
    redis.call('HDEL', KEYS[1], ARGV[i])
    redis.call('ZREM', KEYS[2], ARGV[i])
  else
    redis.call('HSET', KEYS[1], ARGV[i], revision .. ' ' .. ARGV[i + 3])
    redis.call('ZADD', KEYS[2], 0, ARGV[i])
  end
end
redis.call('SET', KEYS[3], revision)
return revision
