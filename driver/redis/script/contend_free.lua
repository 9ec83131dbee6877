-- One free name that nobody awaits is granted here, without the rest of the script. If
-- anything is unusual nothing is granted here, and the rest of the script decides.
-- KEYS and ARGV are those of contend.lua.
if #KEYS == 7 and (ARGV[1] == 'enqueue' or ARGV[1] == 'nowait')
  and redis.call('EXISTS', KEYS[1], KEYS[3], KEYS[4]) == 0 then
  local due = redis.pcall('ZRANGEBYSCORE', KEYS[7], '-inf', text(now), 'LIMIT', 0, 1)
  local ok, counter = false, nil
  if not due.err and #due == 0 then ok, counter = pcall(draw, KEYS[5]) end
  if ok then
    local owner, ttl = ARGV[4], ARGV[5]
    redis.call('ZADD', KEYS[6], 0, KEYS[1])
    redis.call('ZADD', KEYS[7], text(now + ttl), entry(KEYS[1], KEYS[2]))
    redis.call('SET', KEYS[1], owner, 'PX', ttl)
    redis.call('SET', KEYS[2], counter .. ' ' .. text(now) .. ' ' .. owner, 'PX', ttl)
    redis.pcall('PUBLISH', CHANGES .. KEYS[1], '')
    return { { 'granted', counter } }
  end
end
