-- KEYS: the mark, its history. ARGV: counter, sub, token, ahead_us, reason, by,
-- source.
-- Returns the mark that was replaced: token, source, raised.
if implausible(ARGV[1], ARGV[4]) then return { 'implausible' } end
local old = redis.call('HMGET', KEYS[1], 'token', 'source', 'raised')
redis.call('RPUSH', KEYS[2], cjson.encode({
  from = old[1] or '0', to = ARGV[3], reason = ARGV[5], by = ARGV[6], at = now,
}))
set_mark(KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[7])
return { 'rebased', old[1] or '0', old[2] or '', old[3] or '0' }
