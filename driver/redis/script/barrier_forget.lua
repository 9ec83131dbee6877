-- KEYS: the index of markers, the low-water mark. ARGV: prefix of markers, mark_ms,
-- limit, ahead_ms, spread_ms. Returns how many were removed, -1 if the mark is implausible. The
-- markers' keys are of the slot of the index. The mark comes first, and nothing can
-- come between, so that no late call is taken for a new one.
local time = redis.call('TIME')
local mark = tonumber(ARGV[2])
if mark > time[1] * 1000 + tonumber(ARGV[4]) then return -1 end
mark = string.format('%.0f', math.max(mark, tonumber(redis.call('GET', KEYS[2]) or 0)))
redis.call('SET', KEYS[2], mark)
local kept = string.format('%.0f', mark - ARGV[5])
local members = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', '(' .. kept, 'LIMIT', 0, tonumber(ARGV[3]))
for _, member in ipairs(members) do
  redis.call('DEL', ARGV[1] .. member)
  redis.call('ZREM', KEYS[1], member)
end
return #members
