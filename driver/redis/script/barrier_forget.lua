-- KEYS: the index of markers, the low-water mark, the transactions that it excepts. ARGV:
-- prefix of markers, mark_ms, limit, ahead_ms, spread_ms, then the transactions to except.
-- Returns how many were removed, -1 if the mark is implausible. The markers' keys are in
-- the slot of the index. The mark is raised first, and no call can come in between, so
-- that a late call does not count as new.
local time = redis.call('TIME')
local mark, before = tonumber(ARGV[2]), tonumber(redis.call('GET', KEYS[2]) or 0)
if mark > time[1] * 1000 + tonumber(ARGV[4]) then return -1 end
if mark > before then
  redis.call('SET', KEYS[2], string.format('%.0f', mark))
  redis.call('DEL', KEYS[3])
  if #ARGV > 5 then redis.call('SADD', KEYS[3], unpack(ARGV, 6)) end
end
mark = math.max(mark, before)
local excepted = {}
for _, transaction in ipairs(redis.call('SMEMBERS', KEYS[3])) do excepted[transaction] = true end

-- transactionOf returns that of a member, which begins with its length.
local function transactionOf(member)
  local colon = string.find(member, ':', 1, true)
  return string.sub(member, colon + 1, colon + tonumber(string.sub(member, 1, colon - 1)))
end

local kept = string.format('%.0f', mark - ARGV[5])
local limit, removed, spared = tonumber(ARGV[3]), 0, 0
while removed < limit do
  local members = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', '(' .. kept, 'LIMIT', spared, limit - removed)
  if #members == 0 then break end
  for _, member in ipairs(members) do
    if excepted[transactionOf(member)] then
      spared = spared + 1
    else
      redis.call('DEL', ARGV[1] .. member)
      redis.call('ZREM', KEYS[1], member)
      removed = removed + 1
    end
  end
end
return removed
