-- KEYS: the item. ARGV: reservation, units, duration of the hold in ms, and
-- retention after that in ms.
local id, n = ARGV[1], tonumber(ARGV[2])
forget()
local r = find(id)
if r then
  if r.n ~= n then return { 'other' } end
  if r.state == 'expired' or (r.state == 'held' and r.expires <= now) then return { 'gone', 'expired' } end
  if r.state == 'cancelled' then return { 'settled', r.state } end
  return { 'done', r.state }
end
if not known then return { 'unknown' } end
local refused = room(n)
if refused then return refused end
held = held + n
save()
r = { state = 'held', n = n, expires = now + tonumber(ARGV[3]) }
record(id, r)
redis.call('ZADD', KEYS[3], text(r.expires), id)
redis.call('ZADD', KEYS[5], text(r.expires + tonumber(ARGV[4])), 'r' .. id)
return { 'done', r.state }
