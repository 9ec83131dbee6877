-- ARGV: group, lease in ms, most messages, most bytes of payload. Answers with the time until a
-- lane is due, or 0, and then each leased lane: its name, counter, and messages, each with its
-- place, failures, entry and fields.
local group, lease, messages, bytes = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])

local bodies = {} -- of entries that this script has read

local function read()
  return redis.pcall('XREADGROUP', 'GROUP', group, 'interlock', 'COUNT', MOST, 'STREAMS', STREAM, '>')
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
  local entries, members = found[1][2], {}
  local place = redis.call('HINCRBY', LANES, 'n', #entries) - #entries
  for _, entry in ipairs(entries) do
    place = place + 1
    bodies[entry[1]] = entry[2] or {}
    local body = pairsOf(bodies[entry[1]])
    local key, priority = body.key or '', field(body.priority, -1, 1)
    local lane = laneOf(key) or create(place, key, priority, math.min(now, added(entry[1])))
    local l = load(lane)
    if l.priority ~= priority then
      local since = scores[READY][lane] or redis.call('ZSCORE', READY, lane)
      if since then move(lane, READY, since + (l.priority - priority) * AGING_MS) end
      l.priority = priority
      save(l)
    end
    members[#members + 1], members[#members + 2] = 0, lane .. ':' .. pad(place) .. ':' .. entry[1]
  end
  write('ZADD', INDEX, members)
  redis.call('HSET', LANES, 'last', entries[#entries][1])
end

-- expire makes lanes ready whose pause or lease has ended.
local function expire()
  local found = redis.call('ZRANGEBYSCORE', WAITING, '-inf', text(now), 'WITHSCORES', 'LIMIT', 0, MOST)
  for i = 1, #found, 2 do
    local l = load(found[i])
    if not l or l.parked then
      move(found[i])
    elseif l.due > now then
      move(l.name, WAITING, l.due)
    else
      move(l.name, READY, tonumber(found[i + 1]) - l.priority * AGING_MS)
    end
  end
end

local total, size, full = 0, 0, false

-- take returns messages of a lane, and when the first remaining one is due. It drops those
-- whose entries were deleted from the stream.
local function take(lane, most)
  local taken, members = {}, pending(lane, most)
  for _, member in ipairs(members) do
    local place, entry = parse(member)
    local body = bodies[entry]
    if not body then
      local found = redis.call('XRANGE', STREAM, entry, entry)[1]
      body = found and found[2]
    end
    if not body then
      redis.call('ZREM', INDEX, member)
      redis.call('HDEL', NOTES, place)
      redis.call('XACK', STREAM, group, entry)
    else
      local message = pairsOf(body)
      local delay, length = field(message.delay, 0, MAX_DELAY_MS), string.len(message.payload or '')
      local due = added(entry) + delay -- in the future also if the clock was set back
      if delay > 0 and due > now then return taken, due end
      if total > 0 and size + length > bytes then
        full = true
        return taken, 0
      end
      total, size = total + 1, size + length
      taken[#taken + 1] = { place, 0, entry, body }
    end
  end
  return taken, 0
end

local granted = {}

-- grant leases lanes, each with its taken messages, and counts failures.
local function grant()
  if #granted == 0 then return end
  local counter, places = draw(COUNTER), {}
  for _, g in ipairs(granted) do
    for _, m in ipairs(g[3]) do places[#places + 1] = m[1] end
  end
  local notes, n = redis.call('HMGET', NOTES, unpack(places)), 0
  for _, g in ipairs(granted) do
    for _, m in ipairs(g[3]) do
      n = n + 1
      m[2] = failures(notes[n] or nil)
    end
    local l, first = g[1], g[3][1]
    if l.leased then
      first[2] = first[2] + 1
      note(first[1], first[2], 'the lease of its consumer expired')
    end
    l.counter, l.leased, l.due = counter, true, 0
    save(l)
    move(l.name, WAITING, now + lease)
    g[1], g[2] = l.name, counter
  end
end

index()
expire()
flush()
local each = math.max(1, math.min(PER_LANE, math.floor(messages / math.max(1, redis.call('ZCARD', READY)))))
for _, lane in ipairs(messages > 0 and redis.call('ZRANGE', READY, 0, messages - 1) or {}) do
  if full or total >= messages then break end
  local l = load(lane)
  local taken, due = take(lane, math.min(each, messages - total))
  if #taken > 0 then
    granted[#granted + 1] = { l, '', taken }
  elseif due > 0 then
    move(lane, WAITING, due)
  elseif #pending(lane, 1) == 0 then
    forget(l)
  end
end
grant()
flush()
local first = redis.call('ZRANGE', WAITING, 0, 0, 'WITHSCORES')
return { first[2] and math.max(1, tonumber(first[2]) - now) or 0, unpack(granted) }
