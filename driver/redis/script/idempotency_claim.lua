-- KEYS: record, due. ARGV: member, fingerprint, owner, lease_us, input. Creates,
-- takes or leaves the record, and returns it.
local r = redis.call('HMGET', KEYS[1], 'fingerprint', 'finished', 'owner', 'until')
if not r[1] then
  redis.call('HSET', KEYS[1], 'fingerprint', ARGV[2], 'finished', '0', 'owner', ARGV[3], 'attempt', '1', 'input', ARGV[5],
    'points', '', 'status', '0', 'header', '', 'body', '', 'digest', '', 'created', text(now))
  lend(KEYS[1], KEYS[2], ARGV[1], ARGV[4])
elseif r[2] == '0' and r[1] == ARGV[2] and (r[3] == ARGV[3] or tonumber(r[4]) <= now) then
  if r[3] ~= ARGV[3] then redis.call('HINCRBY', KEYS[1], 'attempt', 1) end
  redis.call('HSET', KEYS[1], 'owner', ARGV[3])
  lend(KEYS[1], KEYS[2], ARGV[1], ARGV[4])
end
local shown = redis.call('HMGET', KEYS[1], 'fingerprint', 'owner', 'attempt', 'until', 'created', 'input', 'points',
  'finished', 'status', 'header', 'body', 'digest')
table.insert(shown, 1, text(now))
return shown
