-- KEYS: for each owner the lock and the keys that live as long. ARGV: ttl, owners.
-- Returns for each owner 1 if it holds the lock, which then lives ttl longer, or 0.
local replies, stride = {}, #KEYS / (#ARGV - 1)
for i = 2, #ARGV do
  local first = (i - 2) * stride + 1
  replies[i - 1] = 0
  if redis.pcall('GET', KEYS[first]) == ARGV[i] then
    for j = first, first + stride - 1 do redis.call('PEXPIRE', KEYS[j], ARGV[1]) end
    replies[i - 1] = 1
  end
end
return replies
