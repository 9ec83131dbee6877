-- ARGV: group, 1 to keep entries that are done, then each lane: its name, the counter of its
-- lease, 1 if no message of the lease is left, how many outcomes, and for each of those: place,
-- kind, failures, pause in ms, unique text, message id, reason. Answers with 0 for each lane that
-- somebody else has.
local group, keep = ARGV[1], ARGV[2] == '1'

local function done(member, place, entry, unique, id)
  redis.call('ZREM', INDEX, member)
  if unique ~= '' and redis.call('HGET', UNIQUE, unique) == id then redis.call('HDEL', UNIQUE, unique) end
  return entry
end

local finished, notes = {}, {}

local function settle(l, at)
  local place, kind, failed, after, unique, id, reason = unpack(ARGV, at, at + 6)
  place = pad(tonumber(place))
  local prefix = l.name .. ':' .. place
  local member = redis.call('ZRANGEBYLEX', INDEX, '[' .. prefix .. ':', '(' .. prefix .. ';', 'LIMIT', 0, 1)[1]
  if not member then return end -- it is settled already
  local _, entry = parse(member)
  if kind == 'ack' then
    finished[#finished + 1], notes[#notes + 1] = done(member, place, entry, unique, id), place
  elseif kind == 'dead' then
    done(member, place, entry, unique, id)
    redis.call('ZADD', DEAD, 0, place .. ':' .. entry)
    note(place, tonumber(failed), reason)
  elseif kind == 'retry' then
    note(place, tonumber(failed), reason)
    l.due = math.max(l.due, now + tonumber(after))
  elseif kind == 'park' then
    note(place, tonumber(failed), reason)
    l.parked = true
  end
end

local answer, at = {}, 3
while at <= #ARGV do
  local lane, counter, last, count = unpack(ARGV, at, at + 3)
  at = at + 4
  local l = load(lane)
  local held = l and l.counter == counter
  if held then
    for i = 0, tonumber(count) - 1 do settle(l, at + 7 * i) end
    if last == '1' then
      l.leased = false
      free(l)
    else
      save(l)
    end
  end
  at = at + 7 * tonumber(count)
  answer[#answer + 1] = held and 1 or 0
end
if #finished > 0 then
  redis.call('HDEL', NOTES, unpack(notes))
  redis.call('XACK', STREAM, group, unpack(finished))
  if not keep then redis.call('XDEL', STREAM, unpack(finished)) end
end
return answer
