-- ARGV: group, 1 to keep finished entries, the number of lanes and their names; then for each lane:
-- the counter of its lease, and one of
--   minus the number of outcomes, and the place of each: all are acknowledged, none is left of the
--   lease, and none has a unique text
--   the number of outcomes, 1 if no message of the lease is left, and for each outcome: place, kind,
--   failures, pause in ms, unique text, message id, reason
-- Answers with 0 for each lane that another consumer holds.
local group, keep, lanes = ARGV[1], ARGV[2] == '1', { unpack(ARGV, 4, 3 + ARGV[3]) }

local added, entries, places = {}, {}, {} -- members that return to the index; finished messages
local indexed = redis.call('EXISTS', INDEX) == 1
local find, sub = string.find, string.sub

local function release(unique, id)
  if unique ~= '' and redis.call('HGET', UNIQUE, unique) == id then redis.call('HDEL', UNIQUE, unique) end
end

-- settle records an outcome.
local function settle(l, place, kind, failed, after, unique, id, reason)
  local from = find(l.messages, place .. ':', 1, true)
  if not from then return end -- already settled
  local to = find(l.messages, ',', from, true)
  local entry = sub(l.messages, from + 17, to - 1)
  if kind == 'finish' or kind == 'dead' then
    l.messages = sub(l.messages, 1, from - 1) .. sub(l.messages, to + 1)
    release(unique, id)
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
  local head, n = ARGV[at] .. USUAL, #entries
  if find(record, head, 1, true) ~= 1 then return false end
  local from, of = #head + 1, {}
  for i = 1, count do
    if sub(record, from, from + 15) ~= ARGV[at + 1 + i] then return false end
    local to = find(record, ',', from, true)
    of[i], from = sub(record, from + 17, to - 1), to + 1
  end
  if sub(record, from, from) ~= ' ' then return false end
  for i = 1, count do entries[n + i], places[n + i] = of[i], ARGV[at + 1 + i] end
  local key = sub(record, from + 1)
  if key ~= '' and indexed and #pending(lane, 1) > 0 then
    written[#written + 1], written[#written + 2] = lane, ARGV[at] .. ' 0 0 0 0  ' .. key
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
  local record, count = records[i], tonumber(ARGV[at + 1])
  if count < 0 and record and not loaded[lane] and acknowledge(lane, record, at, -count) then
    answer[i], at = 1, at + 2 - count
  else
    local l, last = loaded[lane] or record and decode(lane, record), count < 0 or ARGV[at + 2] == '1'
    if l and l.counter ~= ARGV[at] then l = nil end
    for n = 1, math.abs(count) do
      if l and count < 0 then
        settle(l, ARGV[at + 1 + n], 'finish', nil, nil, '')
      elseif l then
        settle(l, unpack(ARGV, at - 4 + 7 * n, at + 2 + 7 * n))
      end
    end
    at = at + (count < 0 and 2 - count or 3 + 7 * count)
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
  if redis.call('EXISTS', NOTES) == 1 then redis.call('HDEL', NOTES, unpack(places)) end
end
flush()
return answer
