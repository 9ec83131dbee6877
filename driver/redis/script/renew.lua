-- KEYS: the locks. ARGV: owner and ttl of each. Returns for each owner 1 if it holds the
-- lock, whose time to live is then ttl, or 0.
local replies = {}
for i, lock in ipairs(KEYS) do
  local owner, value = ARGV[2 * i - 1], value_of(lock)
  replies[i] = 0
  if value == owner or type(value) == 'string' and string.sub(value, OWNER_AT) == owner then
    redis.call('PEXPIRE', lock, ARGV[2 * i])
    replies[i] = 1
  end
end
return replies
