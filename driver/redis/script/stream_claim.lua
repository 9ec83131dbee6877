-- ARGV: group, lease in ms, most messages, most bytes of payload. Answers with the time until a
-- lane is due, or 0, the counter of the leases, and for each leased lane: its messages as in its
-- record, and for each message a number and its fields. Unless the lane is new, its name and a blank
-- are before its messages; a blank and their failures, each with a comma, or nothing if there are
-- none, are behind. The number of a message is that of the names and values that follow. It is -2 if
-- the values of id and payload follow, -3 if those of id, key and payload do. All is one list: nested
-- ones are slow.
local group, lease, most, bytes = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])

local known = {} -- messages by entry that this script has read, of lanes that are not new
local wanted, window = {}, 4 -- entries that it may have to read, and how many fetch reads
local fresh, sorted = {}, true -- new lanes, by score: each is its first message, more has the others
local added, removed = {}, {} -- members of the index

-- message returns a message. It has eight fields: with one more, Lua would allocate sixteen.
local function message(entry, body)
  local kind, key, priority, delay = #body, '', 0, 0
  if body[1] == 'id' and (kind == 4 and body[3] == 'payload' or kind == 6 and body[3] == 'key' and body[5] == 'payload') then
    if kind == 6 then key = body[4] end
    kind = -kind / 2
  else
    for i = 1, kind, 2 do
      local name, value = body[i], body[i + 1]
      if name == 'key' then
        key = value
      elseif name == 'priority' then
        priority = field(value, -1, 1)
      elseif name == 'delay' then
        delay = field(value, 0, MAX_DELAY_MS)
      end
    end
  end
  return { entry = entry, body = body, kind = kind, key = key, priority = priority, delay = delay, place = '', more = false }
end

local function lengthOf(m)
  local body, length = m.body, 0
  if m.kind < 0 then return #body[#body] end
  for i = 1, #body, 2 do
    if body[i] == 'payload' then length = #body[i + 1] end
  end
  return length
end

local function add(member)
  added[#added + 1], added[#added + 2] = '0', member
end

local function memberOf(lane, m) return lane .. ':' .. m.place .. ':' .. m.entry end

-- scoreOf returns the score of a new lane in READY.
local function scoreOf(l) return math.min(now, timeOf(l.entry)) - l.priority * AGING_MS end

local function read(count)
  return redis.pcall('XREADGROUP', 'GROUP', group, 'interlock', 'COUNT', count, 'STREAMS', STREAM, '>')
end

-- lanesOf returns the lanes of messages by key; false means none.
local function lanesOf(messages)
  local lanes, keys, fields, names = {}, {}, {}, {}
  for _, m in ipairs(messages) do
    if m.key ~= '' and lanes[m.key] == nil then
      lanes[m.key], keys[#keys + 1], fields[#fields + 1] = false, m.key, 'k' .. m.key
    end
  end
  if #keys == 0 then return lanes end
  local found = redis.call('HMGET', LANES, unpack(fields))
  for _, name in ipairs(found) do
    if name then names[#names + 1] = name end
  end
  load(names)
  for i, name in ipairs(found) do lanes[keys[i]] = name and loaded[name] end
  return lanes
end

-- index assigns a place and a lane to up to count new entries of the stream, and returns how many
-- there were.
local function index(count)
  local found = read(count)
  if found and found.err and find(found.err, 'NOGROUP', 1, true) then
    redis.call('XGROUP', 'CREATE', STREAM, group, string.match(redis.call('HGET', LANES, 'last') or '0', '^%S+'), 'MKSTREAM')
    found = read(count)
  end
  if found and found.err then error(found) end
  if not found or not found[1] then return 0 end
  local entries, messages = found[1][2], {}
  for i, entry in ipairs(entries) do messages[i] = message(entry[1], entry[2] or {}) end
  local place, lanes = redis.call('HINCRBY', LANES, 'n', #entries) - #entries, lanesOf(messages)
  local thousands = ''
  for i, m in ipairs(messages) do
    local low, key = (place + i) % 1000, m.key
    if i == 1 or low == 0 then thousands = sub(pad(place + i), 1, 13) end
    m.place = thousands .. string.char(48 + low / 100, 48 + low / 10 % 10, 48 + low % 10)
    local l = key ~= '' and lanes[key]
    if not l then
      if key ~= '' then lanes[key] = m end
      fresh[#fresh + 1], sorted = m, sorted and m.priority == 0
    elseif l.entry then
      sorted, l.priority = sorted and l.priority == m.priority, m.priority
      if l.more then
        l.more[#l.more + 1] = m
      else
        l.more = { m }
      end
    else
      prioritize(l, m.priority)
      known[m.entry] = m
      add(memberOf(l.name, m))
    end
  end
  local n = #written
  written[n + 1], written[n + 2] = 'last', entries[#entries][1] .. string.rep(' ', 64)
  write('ZADD', INDEX, added)
  added = {}
  return #entries
end

-- expire makes lanes ready whose pause or lease has ended.
local function expire()
  local found = redis.call('ZRANGEBYSCORE', WAITING, '-inf', now_text, 'LIMIT', 0, MOST, 'WITHSCORES')
  local lanes = {}
  for i = 1, #found, 2 do lanes[#lanes + 1] = found[i] end
  load(lanes)
  for i, lane in ipairs(lanes) do
    local l = loaded[lane]
    if not l or l.parked then
      move(lane)
    elseif l.due > now then
      move(lane, WAITING, text(l.due))
    else
      ready(l, tonumber(found[2 * i]))
    end
  end
  if #lanes > 0 then flush() end
end

-- candidates returns the lanes that may be leased, by score.
local function candidates()
  local found, lanes = redis.call('ZRANGE', READY, 0, most - 1, 'WITHSCORES'), {}
  for i = 1, #found, 2 do lanes[#lanes + 1] = found[i] end
  if not sorted then
    local scored = {}
    for _, l in ipairs(fresh) do scored[l] = scoreOf(l) end
    table.sort(fresh, function(a, b) return scored[a] < scored[b] or scored[a] == scored[b] and a.place < b.place end)
  end
  if #lanes == 0 then return fresh end
  load(lanes)
  local all, next_fresh = {}, 1
  for i, lane in ipairs(lanes) do
    local score = tonumber(found[2 * i])
    while fresh[next_fresh] and scoreOf(fresh[next_fresh]) < score do
      all[#all + 1], next_fresh = fresh[next_fresh], next_fresh + 1
    end
    all[#all + 1] = loaded[lane]
  end
  for i = next_fresh, #fresh do all[#all + 1] = fresh[i] end
  return all
end

-- choose returns the members of the first messages of a lane, those of an expired lease included.
local function choose(l, count)
  local members = pending(l.name, count)
  if l.messages ~= '' then
    for _, member in ipairs(leased(l)) do members[#members + 1] = member end
    table.sort(members)
  end
  for i = #members, count + 1, -1 do members[i] = nil end
  for _, member in ipairs(members) do wanted[sub(member, 35)] = true end
  return members
end

-- fetch reads a message and its neighbours in the stream, which are often wanted too.
local function fetch(entry)
  local found, hits = redis.call('XRANGE', STREAM, entry, '+', 'COUNT', window), 0
  for _, neighbour in ipairs(found) do
    if wanted[neighbour[1]] then
      hits = hits + 1
      known[neighbour[1]] = known[neighbour[1]] or message(neighbour[1], neighbour[2])
    end
  end
  window = 2 * hits >= window and math.min(2 * window, 64) or math.max(1, math.floor(window / 2))
  return known[entry]
end

local total, size, full = 0, 0, false
local gone = {} -- entries that were deleted from the stream
local answer, parts, lease_end = { 0, '0' }, 2, text(now + lease)
local noted = redis.call('EXISTS', NOTES) == 1

-- counter returns the counter of the leases, which is drawn for the first of them.
local function counter()
  if answer[2] == '0' then answer[2] = draw(COUNTER) end
  return answer[2]
end

-- dueOf returns when a message may be delivered: in the future also if the clock was set back.
local function dueOf(m) return m.delay > 0 and timeOf(m.entry) + m.delay or 0 end

-- fits counts a message as delivered, unless that exceeds the bytes.
local function fits(m)
  local length = lengthOf(m)
  if total > 0 and size + length > bytes then
    full = true
    return false
  end
  total, size = total + 1, size + length
  return true
end

-- take returns those of the chosen messages that may be delivered, and when the first other one is
-- due. It drops those whose entries were deleted from the stream.
local function take(l, members)
  local taken = {}
  for _, member in ipairs(members) do
    local place, entry = parse(member)
    local m = known[entry] or fetch(entry)
    if not m then
      removed[#removed + 1], gone[#gone + 1] = member, entry
      if l.messages ~= '' then
        l.messages = string.gsub(l.messages, place .. ':[^,]+,', '')
        save(l)
      end
      redis.call('HDEL', NOTES, place)
    else
      m.place = place
      local due = dueOf(m)
      if due > now then return taken, due end
      if not fits(m) then return taken, 0 end
      taken[#taken + 1], removed[#removed + 1] = m, member
    end
  end
  return taken, 0
end

-- failed returns the failures of messages as a list, and counts one of an expired lease.
local function failed(taken, expired)
  if not noted and not expired then return '' end
  local places, list = {}, {}
  for i, m in ipairs(taken) do places[i] = m.place end
  for i, found in ipairs(redis.call('HMGET', NOTES, unpack(places))) do list[i] = failures(found) end
  if expired then
    list[1] = list[1] + 1
    note(places[1], list[1], 'the lease of its consumer expired')
  end
  return table.concat(list, ',') .. ','
end

-- attach adds the fields of a message to the answer.
local function attach(m)
  local n, body, kind = parts + 1, m.body, m.kind
  answer[n] = kind
  if kind < 0 then
    for i = 2, #body, 2 do
      n = n + 1
      answer[n] = body[i]
    end
  else
    for i = 1, kind do answer[n + i] = body[i] end
    n = n + kind
  end
  parts = n
end

-- lease_new writes the lease of a new lane.
local function lease_new(name, key, priority, messages)
  local n = #written
  local head = priority == 0 and USUAL or ' 1 0 ' .. priority .. ' 0 '
  written[n + 1], written[n + 2] = name, counter() .. head .. messages .. ' ' .. key
  if key ~= '' then written[n + 3], written[n + 4] = 'k' .. key, name end
  n = #leases
  leases[n + 1], leases[n + 2] = lease_end, name
end

-- grant leases a lane that is not new.
local function grant(l, taken)
  local messages = ''
  for _, m in ipairs(taken) do messages = messages .. m.place .. ':' .. m.entry .. ',' end
  parts = parts + 1
  answer[parts] = l.name .. ' ' .. messages .. ' ' .. failed(taken, l.leased)
  for _, m in ipairs(taken) do attach(m) end
  for _, member in ipairs(leased(l)) do add(member) end -- of an expired lease
  l.counter, l.leased, l.due, l.messages = counter(), true, 0, messages
  save(l)
  move(l.name, WAITING, lease_end)
end

-- grant_new leases a new lane with up to count of its messages, as far as they may be delivered.
-- The others go to the index.
local function grant_new(l, count)
  local place, key, more, messages, taken, head, m = l.place, l.key, l.more or {}, '', 0, parts + 1, l
  while taken < count and not full and dueOf(m) <= now and fits(m) do
    if taken == 0 then parts = head end
    messages = messages .. m.place .. ':' .. m.entry .. ','
    attach(m)
    taken = taken + 1
    m = more[taken]
  end
  if taken > 0 then
    answer[head] = messages
    lease_new(place, key, l.priority, messages)
  else
    local due = dueOf(l)
    if due > now then
      move(place, WAITING, text(due))
    else
      move(place, READY, text(scoreOf(l)))
    end
    insert(create(place, key, l.priority))
    add(memberOf(place, l))
  end
  for i = math.max(1, taken), #more do add(memberOf(place, more[i])) end
end

expire()
-- Entries that are leased when they are read are not in the index. So it reads as many as it leases
-- beyond what is ready, but AHEAD at least, for their priorities.
local unread = math.max(AHEAD, math.min(MOST, most - redis.call('ZCARD', READY)))
local more = index(unread) == unread
local lanes, chosen, left = most > 0 and candidates() or fresh, {}, most
for i, l in ipairs(lanes) do
  if left <= 0 then break end
  if l.entry and not l.more then
    chosen[i], left = 1, left - 1
  else
    local count = math.max(1, math.min(PER_LANE, math.floor(left / (#lanes - i + 1))))
    chosen[i] = l.entry and math.min(count, 1 + #l.more) or choose(l, count)
    left = left - (l.entry and chosen[i] or #chosen[i])
  end
end
local emptied = {}
for i, l in ipairs(lanes) do
  if l.entry then
    grant_new(l, chosen[i] or 0)
  elseif chosen[i] and not full then
    local taken, due = take(l, chosen[i])
    if #taken > 0 then
      grant(l, taken)
    elseif due > 0 then
      move(l.name, WAITING, text(due))
    elseif not full then
      emptied[#emptied + 1] = l
    end
  end
end
write('ZADD', INDEX, added)
write('ZREM', INDEX, removed)
if #gone > 0 then redis.call('XACK', STREAM, group, unpack(gone)) end
for _, l in ipairs(emptied) do
  if not first(l) then forget(l) end
end
flush()
local due = redis.call('ZRANGE', WAITING, 0, 0, 'WITHSCORES')[2]
if due then answer[1] = math.max(1, tonumber(due) - now) end
if more and parts == 2 then answer[1] = 1 end -- the next entries may be of other keys
return answer
