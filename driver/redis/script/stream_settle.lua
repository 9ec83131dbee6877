-- ARGV: group, 1 to keep finished entries, then each lane: its name, the counter of its lease, 1
-- if no message of the lease is left, the number of outcomes, and for each outcome: place, kind,
-- failures, pause in ms, unique text, message id, reason. Answers with 0 for each lane that
-- another consumer holds.
local group, keep = ARGV[1], ARGV[2] == '1'

local members, entries, notes = {}, {}, {} -- of finished messages

-- finish removes a message from its lane.
local function finish(member, unique, id)
  members[#members + 1] = member
  if unique ~= '' and redis.call('HGET', UNIQUE, unique) == id then redis.call('HDEL', UNIQUE, unique) end
end

-- settle records an outcome. unfinished are the first messages of the lane by place.
local function settle(l, unfinished, at)
  local place, kind, failed, after, unique, id, reason = unpack(ARGV, at, at + 6)
  place = pad(tonumber(place))
  local prefix = l.name .. ':' .. place
  local member = unfinished[place] or redis.call('ZRANGEBYLEX', INDEX, '[' .. prefix .. ':', '(' .. prefix .. ';', 'LIMIT', 0, 1)[1]
  if not member then return end -- already settled
  local _, entry = parse(member)
  if kind == 'ack' then
    finish(member, unique, id)
    entries[#entries + 1], notes[#notes + 1], unfinished[place] = entry, place, nil
  elseif kind == 'dead' then
    finish(member, unique, id)
    redis.call('ZADD', DEAD, 0, place .. ':' .. entry)
    note(place, tonumber(failed), reason)
    unfinished[place] = nil
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
    local unfinished = {}
    -- One more than a lease can have, so that one is left in any case.
    for _, member in ipairs(pending(lane, PER_LANE + 1)) do unfinished[parse(member)] = member end
    for i = 0, tonumber(count) - 1 do settle(l, unfinished, at + 7 * i) end
    if last == '1' then
      l.leased = false
      free(l, next(unfinished) ~= nil)
    else
      save(l)
    end
  end
  at = at + 7 * tonumber(count)
  answer[#answer + 1] = held and 1 or 0
end
write('ZREM', INDEX, members)
write('HDEL', NOTES, notes)
if #entries > 0 then
  redis.call('XACK', STREAM, group, unpack(entries))
  if not keep then redis.call('XDEL', STREAM, unpack(entries)) end
end
flush()
return answer
