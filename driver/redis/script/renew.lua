-- KEYS: for each owner the lock and the keys that live as long. ARGV: owner and ttl of
-- each. Returns for each owner 1 if it holds the lock, whose time to live is then ttl,
-- or 0.
local replies, owners = {}, #ARGV / 2
local stride = #KEYS / owners
for i = 1, owners do
  local first = (i - 1) * stride + 1
  replies[i] = 0
  if redis.pcall('GET', KEYS[first]) == ARGV[2 * i - 1] then
    for j = first, first + stride - 1 do redis.call('PEXPIRE', KEYS[j], ARGV[2 * i]) end
    replies[i] = 1
  end
end
return replies
