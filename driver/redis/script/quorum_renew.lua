-- KEYS: a lock for each owner. ARGV: ttl, owners. Returns for each owner 1 if it
-- held the lock, 2 if nobody did and it does now, 0 if somebody else does; then for
-- how many seconds the server has been up.
local replies = {}
for i, lock in ipairs(KEYS) do
  local owner, holder = ARGV[i + 1], redis.pcall('GET', lock)
  replies[i] = 0
  if holder == owner then
    redis.call('PEXPIRE', lock, ARGV[1])
    replies[i] = 1
  elseif not holder then
    redis.call('SET', lock, owner, 'PX', ARGV[1])
    replies[i] = 2
  end
end
replies[#replies + 1] = tonumber(string.match(redis.call('INFO', 'server'), 'uptime_in_seconds:(%d+)'))
return replies
