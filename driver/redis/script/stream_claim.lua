-- ARGV: group, lease in ms, most messages, most bytes of payload. Answers with the time until a
-- lane is due, or 0, the counter of the leases, and for each leased lane: its messages as in its
-- record, and for each message the number of its fields, names and values, and these. Unless the lane
-- is new, its name and a blank are before its messages; a blank and their failures, each with a comma,
-- or nothing if there are none, are behind. All is one list: nested ones are slow.
local group, lease, most, bytes = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])

local known = {} -- messages by entry that this script has read, except new ones without a key
local wanted, window = {}, 4 -- entries that it may have to read, and how many fetch reads
local fresh, sorted = {}, true -- new lanes, each with its messages, by score; without a key, the message itself
local added, removed = {}, {} -- members of the index

-- message returns a message. It has eight fields: with one more, Lua would allocate sixteen.
local function message(entry, body)
  local m = { entry = entry, body = body, key = '', priority = 0, delay = 0, length = 0, place = '', score = 0 }
  for i = 1, #body, 2 do
    local name, value = body[i], body[i + 1]
    if name == 'payload' then
      m.length = #value
    elseif name == 'key' then
      m.key = value
    elseif name == 'priority' then
      m.priority = field(value, -1, 1)
    elseif name == 'delay' then
      m.delay = field(value, 0, MAX_DELAY_MS)
    end
  end
  return m
end

local function add(member)
  added[#added + 1], added[#added + 2] = '0', member
end

local function memberOf(l, m) return l.name .. ':' .. m.place .. ':' .. m.entry end

local function read()
  return redis.pcall('XREADGROUP', 'GROUP', group, 'interlock', 'COUNT', MOST, 'STREAMS', STREAM, '>')
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

-- prioritize gives a lane the priority of its last message.
local function prioritize(l, priority)
  local change = (l.priority - priority) * AGING_MS
  if l.fresh then
    l.score, l.priority, sorted = l.score + change, priority, false
  else
    local since = redis.call('ZSCORE', READY, l.name)
    if since then redis.call('ZADD', READY, text(since + change), l.name) end
    l.priority = priority
    save(l)
  end
end

-- index assigns a place and a lane to new entries of the stream.
local function index()
  local found = read()
  if found and found.err and string.find(found.err, 'NOGROUP', 1, true) then
    redis.call('XGROUP', 'CREATE', STREAM, group, redis.call('HGET', LANES, 'last') or '0', 'MKSTREAM')
    found = read()
  end
  if found and found.err then error(found) end
  if not found or not found[1] then return end
  local entries, messages = found[1][2], {}
  for i, entry in ipairs(entries) do messages[i] = message(entry[1], entry[2] or {}) end
  local place, lanes = redis.call('HINCRBY', LANES, 'n', #entries) - #entries, lanesOf(messages)
  local thousands, clock, since = '', '', 0
  for i, m in ipairs(messages) do
    local low, key, l = (place + i) % 1000, m.key, m
    if i == 1 or low == 0 then thousands = string.sub(pad(place + i), 1, 13) end
    m.place = thousands .. string.char(48 + low / 100, 48 + low / 10 % 10, 48 + low % 10)
    if key ~= '' then
      known[m.entry] = m
      l = lanes[key]
    end
    if key == '' or not l then
      if string.sub(m.entry, 1, 14) ~= clock then
        clock, since = string.sub(m.entry, 1, 14), math.min(now, timeOf(m.entry))
      end
      if key ~= '' then
        l = create(m.place, key, m.priority)
        lanes[key], l.fresh = l, {}
      end
      l.score = since - m.priority * AGING_MS
      sorted = sorted and (#fresh == 0 or fresh[#fresh].score <= l.score)
      fresh[#fresh + 1] = l
    elseif l.priority ~= m.priority then
      prioritize(l, m.priority)
    end
    if l.fresh then
      l.fresh[#l.fresh + 1] = m
    elseif key ~= '' then
      add(memberOf(l, m))
    end
  end
  redis.call('HSET', LANES, 'last', entries[#entries][1])
  write('ZADD', INDEX, added)
  added = {}
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
  local found, lanes = redis.call('ZRANGE', READY, 0, most - 1, 'WITHSCORES'), {}, {}
  for i = 1, #found, 2 do lanes[#lanes + 1] = found[i] end
  if not sorted then
    table.sort(fresh, function(a, b)
      return a.score < b.score or a.score == b.score and (a.name or a.place) < (b.name or b.place)
    end)
  end
  if #lanes == 0 then return fresh end
  load(lanes)
  local all, next_fresh = {}, 1
  for i, lane in ipairs(lanes) do
    local score = tonumber(found[2 * i])
    while fresh[next_fresh] and fresh[next_fresh].score < score do
      all[#all + 1], next_fresh = fresh[next_fresh], next_fresh + 1
    end
    all[#all + 1] = loaded[lane]
  end
  for i = next_fresh, #fresh do all[#all + 1] = fresh[i] end
  return all
end

-- choose returns the first messages of a lane, those of an expired lease included.
local function choose(l, count)
  if l.fresh and #l.fresh <= count then return l.fresh end
  local messages = {}
  if l.fresh then
    for i = 1, count do messages[i] = l.fresh[i] end
    return messages
  end
  local members = pending(l.name, count)
  if l.messages ~= '' then
    for _, member in ipairs(leased(l)) do members[#members + 1] = member end
    table.sort(members)
  end
  for i = 1, math.min(count, #members) do
    local place, entry = parse(members[i])
    wanted[entry], messages[i] = true, { place = place, entry = entry }
  end
  return messages
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
local answer, lease_end = { 0, '0' }, text(now + lease)
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
  if total > 0 and size + m.length > bytes then
    full = true
    return false
  end
  total, size = total + 1, size + m.length
  return true
end

-- take returns those of the chosen messages that may be delivered, and when the first other one is
-- due. It drops those whose entries were deleted from the stream.
local function take(l, chosen)
  local taken = {}
  for _, c in ipairs(chosen) do
    local m = known[c.entry] or fetch(c.entry)
    if not m then
      removed[#removed + 1], gone[#gone + 1] = memberOf(l, c), c.entry
      if l.messages ~= '' then
        l.messages = string.gsub(l.messages, c.place .. ':[^,]+,', '')
        save(l)
      end
      redis.call('HDEL', NOTES, c.place)
    else
      m.place = c.place
      local due = dueOf(m)
      if due > now then return taken, due end
      if not fits(m) then return taken, 0 end
      taken[#taken + 1] = m
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
  local n, body = #answer + 1, m.body
  answer[n] = #body
  for i = 1, #body do answer[n + i] = body[i] end
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

-- grant leases a lane with messages.
local function grant(l, taken)
  local messages = ''
  for _, m in ipairs(taken) do
    messages = messages .. m.place .. ':' .. m.entry .. ','
    if not l.fresh then removed[#removed + 1] = memberOf(l, m) end
  end
  answer[#answer + 1] = l.fresh and messages or l.name .. ' ' .. messages .. ' ' .. failed(taken, l.leased)
  for _, m in ipairs(taken) do attach(m) end
  if l.fresh then return lease_new(l.name, l.key, l.priority, messages) end
  for _, member in ipairs(leased(l)) do add(member) end -- of an expired lease
  l.counter, l.leased, l.due, l.messages = counter(), true, 0, messages
  save(l)
  move(l.name, WAITING, lease_end)
end

-- grant_one leases a new message without a key, if it may be delivered.
local function grant_one(m, chosen)
  local place, due = m.place, dueOf(m)
  if chosen and not full and due <= now and fits(m) then
    local messages = place .. ':' .. m.entry .. ','
    answer[#answer + 1] = messages
    attach(m)
    return lease_new(place, '', m.priority, messages)
  end
  add(place .. ':' .. place .. ':' .. m.entry)
  save(create(place, '', m.priority))
  if due > now then
    move(place, WAITING, text(due))
  else
    move(place, READY, text(m.score))
  end
end

index()
expire()
local lanes, chosen, left = most > 0 and candidates() or fresh, {}, most
for i, l in ipairs(lanes) do
  if left <= 0 then break end
  chosen[i] = l.entry and l or choose(l, math.max(1, math.min(PER_LANE, math.floor(left / (#lanes - i + 1)))))
  left = left - (l.entry and 1 or #chosen[i])
end
local emptied = {}
for i, l in ipairs(lanes) do
  if l.entry then
    grant_one(l, chosen[i])
  else
    local taken, due = {}, 0
    if chosen[i] and not full then taken, due = take(l, chosen[i]) end
    if l.fresh then
      for n = #taken + 1, #l.fresh do add(memberOf(l, l.fresh[n])) end
      if #taken == 0 then insert(l) end
    end
    if #taken > 0 then
      grant(l, taken)
    elseif due > 0 then
      move(l.name, WAITING, text(due))
    elseif l.fresh then
      move(l.name, READY, text(l.score))
    elseif chosen[i] and not full then
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
return answer
