-- ARGV: group, 1 to keep finished entries, the number of lanes and their names; then for each lane:
-- the counter of its lease, 1 if no message of the lease is left, the number of outcomes, and for
-- each outcome: place, kind, and unless the kind is ack, for a message without unique text: failures,
-- pause in ms, unique text, message id, reason. Answers with 0 for each lane that another consumer holds.
local group, keep, lanes = ARGV[1], ARGV[2] == '1', { unpack(ARGV, 4, 3 + ARGV[3]) }

local added, entries, places = {}, {}, {} -- members that return to the index; finished messages

local function release(unique, id)
  if unique ~= '' and redis.call('HGET', UNIQUE, unique) == id then redis.call('HDEL', UNIQUE, unique) end
end

-- settle records an outcome and returns the number of its arguments. Without a lane it only does that.
local function settle(l, at)
  local place, kind = ARGV[at], ARGV[at + 1]
  local count = kind == 'ack' and 2 or 7
  if not l then return count end
  local from = string.find(l.messages, place .. ':', 1, true)
  if not from then return count end -- already settled
  local to = string.find(l.messages, ',', from, true)
  local entry = string.sub(l.messages, from + 17, to - 1)
  if kind == 'ack' or kind == 'finish' or kind == 'dead' then
    l.messages = string.sub(l.messages, 1, from - 1) .. string.sub(l.messages, to + 1)
  end
  if kind == 'ack' then
    entries[#entries + 1], places[#places + 1] = entry, place
    return count
  end
  local failed, after, unique, id, reason = unpack(ARGV, at + 2, at + 6)
  if kind == 'finish' then
    release(unique, id)
    entries[#entries + 1], places[#places + 1] = entry, place
  elseif kind == 'dead' then
    release(unique, id)
    redis.call('ZADD', DEAD, '0', place .. ':' .. entry)
    note(place, tonumber(failed), reason)
  elseif kind == 'retry' then
    note(place, tonumber(failed), reason)
    l.due = math.max(l.due, now + tonumber(after))
  elseif kind == 'park' then
    note(place, tonumber(failed), reason)
    l.parked = true
  end
  return count
end

load(lanes)
local indexed = redis.call('EXISTS', INDEX) == 1
local answer, at = {}, 4 + #lanes
for i, lane in ipairs(lanes) do
  local l, last, count = loaded[lane], ARGV[at + 1] == '1', ARGV[at + 2]
  if l and l.counter ~= ARGV[at] then l = nil end
  at = at + 3
  for _ = 1, count do at = at + settle(l, at) end
  if l and last then
    local left = l.messages ~= ''
    for _, member in ipairs(leased(l)) do added[#added + 1], added[#added + 2] = '0', member end
    l.leased, l.messages = false, ''
    free(l, left or indexed and #pending(lane, 1) > 0)
  elseif l then
    save(l)
  end
  answer[i] = l and 1 or 0
end
write('ZADD', INDEX, added)
if #entries > 0 then
  redis.call('XACK', STREAM, group, unpack(entries))
  if not keep then redis.call('XDEL', STREAM, unpack(entries)) end
  if redis.call('EXISTS', NOTES) == 1 then redis.call('HDEL', NOTES, unpack(places)) end
end
flush()
return answer
