-- One free name that nobody awaits is granted here, without the rest of the script. If
-- anything is unusual nothing is granted here, and the rest of the script decides; it
-- also looks after the index, for one of 64 grants.
-- KEYS and ARGV are those of contend.lua. Returns the counter.
local taken -- how many of lock and queue there are, of one name
if #KEYS == 6 and (ARGV[1] == 'enqueue' or ARGV[1] == 'nowait') then
  taken = redis.call('EXISTS', KEYS[1], KEYS[3])
  if taken == 0 and now_us % 64 > 0 then
    local ok, counter = pcall(draw, KEYS[5])
    if ok then
      local owner, ttl = ARGV[3], ARGV[4]
      redis.call('ZADD', KEYS[6], 0, KEYS[1])
      redis.call('SET', KEYS[1], owner, 'PX', ttl)
      redis.call('SET', KEYS[2], counter .. ' ' .. text(now) .. ' ' .. owner, 'PX', ttl)
      redis.pcall('PUBLISH', CHANGES .. KEYS[1], '')
      return counter
    end
  end
end
