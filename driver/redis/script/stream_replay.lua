-- ARGV: group, replay or discard, why, who, then places of dead letters. Answers with how many there are;
-- unless it is all of them nothing is changed.
local members = {}
for i = 5, #ARGV do
  local place = pad(tonumber(ARGV[i]))
  local member = redis.call('ZRANGEBYLEX', DEAD, '[' .. place .. ':', '(' .. place .. ';', 'LIMIT', 0, 1)[1]
  if member then members[#members + 1] = member end
end
if #members < #ARGV - 4 then return #members end
for _, member in ipairs(members) do
  local place, entry = parse(member)
  redis.call('ZREM', DEAD, member)
  redis.call('HDEL', NOTES, place)
  local found = redis.call('XRANGE', STREAM, entry, entry)[1]
  local fields = pairsOf(found and found[2] or {})
  local key = fields.key or ''
  audit('action', ARGV[2], 'place', place, 'id', fields.id or entry, 'key', key, 'reason', ARGV[3], 'by', ARGV[4])
  if found and ARGV[2] == 'replay' then
    local lane = key ~= '' and redis.call('HGET', LANES, 'k' .. key)
    if not lane then
      lane = place
      create(tonumber(place), key, field(fields.priority, -1, 1), now)
    end
    redis.call('ZADD', INDEX, 0, lane .. ':' .. member)
  else
    redis.call('XACK', STREAM, ARGV[1], entry)
    redis.call('XDEL', STREAM, entry)
  end
end
return #members
