-- KEYS: record, due. ARGV: member, owner, step, lease_us, write points (0, 1), points,
-- and to finish: status, header, body, digest, keep_ms. step is update, finish or
-- forget. Returns done or lost.
local r = redis.call('HMGET', KEYS[1], 'owner', 'finished')
if not r[1] and ARGV[3] == 'forget' then return 'done' end
if r[1] ~= ARGV[2] then return 'lost' end
if r[2] == '1' then return 'done' end
if ARGV[3] == 'forget' then
  redis.call('DEL', KEYS[1])
  redis.call('ZREM', KEYS[2], ARGV[1])
  return 'done'
end
lend(KEYS[1], KEYS[2], ARGV[1], ARGV[4])
if ARGV[5] == '1' then redis.call('HSET', KEYS[1], 'points', ARGV[6]) end
if ARGV[3] == 'finish' then
  redis.call('HSET', KEYS[1], 'finished', '1', 'status', ARGV[7], 'header', ARGV[8], 'body', ARGV[9], 'digest', ARGV[10])
  redis.call('ZREM', KEYS[2], ARGV[1])
  redis.call('PEXPIRE', KEYS[1], ARGV[11])
end
return 'done'
