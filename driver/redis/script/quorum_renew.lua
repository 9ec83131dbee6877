-- KEYS: a lock for each owner. ARGV: owner and ttl of each. Returns for each owner 1 if it
-- held the lock, 2 if the lock was free and it holds it now, 0 if another owner does; then
-- the server's uptime in seconds.
local replies = {}
for i, lock in ipairs(KEYS) do
  local owner, ttl, holder = ARGV[2 * i - 1], ARGV[2 * i], value_of(lock)
  replies[i] = 0
  if holder == owner then
    redis.call('PEXPIRE', lock, ttl)
    replies[i] = 1
  elseif not holder then
    redis.call('SET', lock, owner, 'PX', ttl)
    replies[i] = 2
  end
end
replies[#replies + 1] = tonumber(string.match(redis.call('INFO', 'server'), 'uptime_in_seconds:(%d+)'))
return replies
