-- ARGV: group, lease in ms, most messages, most bytes of payload. Answers with the time until a
-- lane is due, or 0, and then each lane that it leased: its name, counter, and messages, each
-- with its place, failures, entry and fields.
local group, lease, messages, bytes = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])

local function read()
  return redis.pcall('XREADGROUP', 'GROUP', group, 'interlock', 'COUNT', MOST, 'STREAMS', STREAM, '>')
end

-- index gives a place and a lane to entries that are new in the stream.
local function index()
  local found = read()
  if found and found.err and string.find(found.err, 'NOGROUP', 1, true) then
    redis.call('XGROUP', 'CREATE', STREAM, group, redis.call('HGET', LANES, 'last') or '0', 'MKSTREAM')
    found = read()
  end
  if found and found.err then error(found) end
  if not found or not found[1] then return end
  local entries = found[1][2]
  local place = redis.call('HINCRBY', LANES, 'n', #entries) - #entries
  for _, entry in ipairs(entries) do
    place = place + 1
    local fields = pairsOf(entry[2] or {})
    local key, priority = fields.key or '', field(fields.priority, -1, 1)
    local lane = key ~= '' and redis.call('HGET', LANES, 'k' .. key)
    if not lane then
      lane = pad(place)
      create(place, key, priority, math.min(now, added(entry[1])))
    else
      local l = load(lane)
      if l.priority ~= priority then
        if redis.call('ZSCORE', READY, lane) then
          redis.call('ZINCRBY', READY, text((l.priority - priority) * AGING_MS), lane)
        end
        l.priority = priority
        save(l)
      end
    end
    redis.call('ZADD', INDEX, 0, lane .. ':' .. pad(place) .. ':' .. entry[1])
  end
  redis.call('HSET', LANES, 'last', entries[#entries][1])
end

-- expire makes lanes ready whose pause or lease has ended.
local function expire()
  local found = redis.call('ZRANGEBYSCORE', WAITING, '-inf', text(now), 'WITHSCORES', 'LIMIT', 0, MOST)
  for i = 1, #found, 2 do
    local l = load(found[i])
    redis.call('ZREM', WAITING, found[i])
    if l and not l.parked then
      if l.due > now then
        redis.call('ZADD', WAITING, text(l.due), l.name)
      else
        redis.call('ZADD', READY, text(tonumber(found[i + 1]) - l.priority * AGING_MS), l.name)
      end
    end
  end
end

local counter, total, size, full = nil, 0, 0, false

-- take returns messages of a lane, and when the first that is not taken is due. It drops those
-- whose entries were deleted from the stream.
local function take(lane, most)
  local taken = {}
  for _, member in ipairs(pending(lane, most)) do
    local place, entry = parse(member)
    local found = redis.call('XRANGE', STREAM, entry, entry)[1]
    if not found then
      redis.call('ZREM', INDEX, member)
      redis.call('HDEL', NOTES, place)
      redis.call('XACK', STREAM, group, entry)
    else
      local fields = pairsOf(found[2])
      local due, length = added(entry) + field(fields.delay, 0, MAX_DELAY_MS), string.len(fields.payload or '')
      if due > now then return taken, due end
      if total > 0 and size + length > bytes then
        full = true
        return taken, 0
      end
      total, size = total + 1, size + length
      taken[#taken + 1] = { place, 0, entry, found[2] }
    end
  end
  return taken, 0
end

local function grant(l, taken)
  local places = {}
  for i, m in ipairs(taken) do places[i] = m[1] end
  local notes = redis.call('HMGET', NOTES, unpack(places))
  for i, m in ipairs(taken) do m[2] = failures(notes[i] or nil) end
  if l.leased then
    taken[1][2] = taken[1][2] + 1
    note(places[1], taken[1][2], 'the lease of its consumer expired')
  end
  counter = counter or draw(COUNTER)
  l.counter, l.leased, l.due = counter, true, 0
  save(l)
  redis.call('ZREM', READY, l.name)
  redis.call('ZADD', WAITING, text(now + lease), l.name)
  return { l.name, counter, taken }
end

index()
expire()
local answer = { 0 }
local each = math.max(1, math.min(PER_LANE, math.floor(messages / math.max(1, redis.call('ZCARD', READY)))))
for _, lane in ipairs(messages > 0 and redis.call('ZRANGE', READY, 0, messages - 1) or {}) do
  if full or total >= messages then break end
  local l = load(lane)
  local taken, due = take(lane, math.min(each, messages - total))
  if #taken > 0 then
    answer[#answer + 1] = grant(l, taken)
  elseif due > 0 then
    redis.call('ZREM', READY, lane)
    redis.call('ZADD', WAITING, text(due), lane)
  elseif #pending(lane, 1) == 0 then
    redis.call('ZREM', READY, lane)
    forget(l)
  end
end
local first = redis.call('ZRANGE', WAITING, 0, 0, 'WITHSCORES')
if first[2] then answer[1] = math.max(1, tonumber(first[2]) - now) end
return answer
