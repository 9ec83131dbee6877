-- ARGV: group, replay or discard, why, who, then places of dead letters. Answers with how many
-- exist; it changes nothing unless all do.
local members = {}

-- isLast reports whether a letter comes after all messages of a lane.
local function isLast(l, letter)
  local member, held = l.name .. ':' .. letter, leased(l)
  return #redis.call('ZRANGEBYLEX', INDEX, '(' .. member, '(' .. l.name .. ';', 'LIMIT', 0, 1) == 0 and (not held[1] or held[#held] < member)
end

for i = 5, #ARGV do
  local place = pad(tonumber(ARGV[i]))
  local member = redis.call('ZRANGEBYLEX', DEAD, '[' .. place .. ':', '(' .. place .. ';', 'LIMIT', 0, 1)[1]
  if member then members[#members + 1] = member end
end
if #members < #ARGV - 4 then return #members end
for _, member in ipairs(members) do
  local place, entry = parseDead(member)
  redis.call('ZREM', DEAD, member)
  redis.call('HDEL', NOTES, place)
  local found = redis.call('XRANGE', STREAM, entry, entry)[1]
  local body = pairsOf(found and found[2] or {})
  local key = body.key or ''
  audit('action', ARGV[2], 'place', place, 'id', body.id or entry, 'key', key, 'reason', ARGV[3], 'by', ARGV[4])
  if found and ARGV[2] == 'replay' then
    local l, priority = laneOf(key), field(body.priority, -1, 1)
    if not l then
      l = create(place, key, priority)
      insert(l)
      ready(l, now)
    elseif isLast(l, member) then
      prioritize(l, priority)
    end
    flush() -- another letter may be of the same key
    redis.call('ZADD', INDEX, '0', l.name .. ':' .. member)
  else
    redis.call('XACK', STREAM, ARGV[1], entry)
    redis.call('XDEL', STREAM, entry)
  end
end
return #members
