-- ARGV: group, 1 to keep finished entries, the number of lanes and their names; then for each lane
-- one of
--   if all its messages are acknowledged, none is left of the lease, and none has a unique text:
--   minus their number unless it is 1, the begin of its record up to the first place and a colon, and
--   the places of the others
--   the number of outcomes, the counter of the lease, 1 if no message of it is left, and for each
--   outcome: place, kind, failures, pause in ms, unique text, reason
-- Answers with 0 for each lane that another consumer holds.
local group, keep, lanes = ARGV[1], ARGV[2] == '1', { unpack(ARGV, 4, 3 + ARGV[3]) }

local added, entries, places = {}, {}, {} -- members that return to the index; finished messages
local indexed, noted = redis.call('EXISTS', INDEX) == 1, redis.call('EXISTS', NOTES) == 1

local function release(unique, entry)
  if unique ~= '' and redis.call('HGET', UNIQUE, unique) == entry then redis.call('HDEL', UNIQUE, unique) end
end

-- settle records an outcome.
local function settle(l, place, kind, failed, after, unique, reason)
  local from = find(l.messages, place .. ':', 1, true)
  if not from then return end -- already settled
  local to = find(l.messages, ',', from, true)
  local entry = sub(l.messages, from + 17, to - 1)
  if kind == 'finish' or kind == 'dead' then
    l.messages = sub(l.messages, 1, from - 1) .. sub(l.messages, to + 1)
    release(unique, entry)
  end
  if kind == 'finish' then
    entries[#entries + 1], places[#places + 1] = entry, place
  elseif kind == 'dead' then
    redis.call('ZADD', DEAD, '0', place .. ':' .. entry)
    note(place, tonumber(failed), reason)
  elseif kind == 'retry' then
    note(place, tonumber(failed), reason)
    l.due = math.max(l.due, now + tonumber(after))
  elseif kind == 'park' then
    note(place, tonumber(failed), reason)
    l.parked = true
  end
end

-- acknowledge settles a usual lease whose messages are all acknowledged, in order. It returns
-- false, and changes nothing, if the lease is another one.
local function acknowledge(lane, record, at, count)
  local head, n = ARGV[at], #entries
  local to, from = 0, #head + 1
  local same = find(record, head, 1, true) == 1
  for i = 1, same and count or 0 do
    same = i == 1 or sub(record, to + 1, to + 16) == ARGV[at + i - 1]
    if not same then break end
    to = find(record, ',', from, true)
    entries[n + i], from = sub(record, from, to - 1), to + 18
  end
  if not same or sub(record, to + 1, to + 1) ~= ' ' then
    for i = n + 1, #entries do entries[i] = nil end
    return false
  end
  if noted then
    places[#places + 1] = sub(head, -17, -2)
    for i = 1, count - 1 do places[#places + 1] = ARGV[at + i] end
  end
  local key = sub(record, to + 2)
  if key ~= '' and indexed and #pending(lane, 1) > 0 then
    written[#written + 1], written[#written + 2] = lane, string.match(head, '^%d+') .. ' 0 0 0 0  ' .. key
    move(lane, READY, now_text)
    return true
  end
  dropped[#dropped + 1], ended[#ended + 1] = lane, lane
  if key ~= '' then dropped[#dropped + 1] = 'k' .. key end
  return true
end

local records = redis.call('HMGET', LANES, unpack(lanes))
local answer, at = {}, 4 + #lanes
for i, lane in ipairs(lanes) do
  local record, count = records[i], tonumber(ARGV[at]) or -1
  if count < -1 then at = at + 1 end
  if count < 0 and record and not loaded[lane] and acknowledge(lane, record, at, -count) then
    answer[i], at = 1, at - count
  else
    local l, counter, last, place = loaded[lane] or record and decode(lane, record), ARGV[at + 1], ARGV[at + 2] == '1', nil
    if count < 0 then counter, last, place = string.match(ARGV[at], '^%d+'), true, sub(ARGV[at], -17, -2) end
    if l and l.counter ~= counter then l = nil end
    for n = 1, l and math.abs(count) or 0 do
      if count < 0 then
        settle(l, n == 1 and place or ARGV[at + n - 1], 'finish', nil, nil, '')
      else
        settle(l, unpack(ARGV, at - 3 + 6 * n, at + 2 + 6 * n))
      end
    end
    at = at + (count < 0 and -count or 3 + 6 * count)
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
end
write('ZADD', INDEX, added)
if #entries > 0 then
  redis.call('XACK', STREAM, group, unpack(entries))
  if not keep then redis.call('XDEL', STREAM, unpack(entries)) end
  if noted then redis.call('HDEL', NOTES, unpack(places)) end
end
flush()
return answer
