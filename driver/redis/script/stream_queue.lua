-- What the scripts of a queue share. KEYS: the stream, and the queue's own:
--   lanes    n: the last place, last: the last entry that was indexed, k<KEY>: the lane of a
--            key, <LANE>: "COUNTER LEASED PARKED PRIORITY DUE KEY"
--   index    <LANE>:<PLACE>:<ENTRY> of each unfinished message, in this order
--   ready    lanes by the time since which they wait, earlier by AGING_MS for each priority
--   waiting  lanes by the time at which their lease or their pause ends
--   notes    of a place: "FAILURES TIME REASON"
--   dead     <PLACE>:<ENTRY> of each dead letter
--   unique   the message that has a unique text
--   audit    a stream of manual operations
-- A lane is the unit of a lease: the messages of a key, or one without a key. It is named by
-- the place of its first message. Lanes and places have 16 digits, so that they sort as text.
local STREAM, LANES, INDEX, READY, WAITING, NOTES, DEAD, UNIQUE, AUDIT, COUNTER = unpack(KEYS, 1, 10)

local function pad(number) return string.format('%016.0f', number) end

-- A script reads lanes once, and flush writes its changes to them together: loaded has lanes by
-- name, named those of keys, fields and scores the writes. False means missing.
local loaded, named, fields, scores = {}, {}, {}, { [READY] = {}, [WAITING] = {} }

local function load(lane)
  if loaded[lane] == nil then
    local found = redis.call('HGET', LANES, lane)
    loaded[lane] = false
    if found then
      local counter, leased, parked, priority, due, key = string.match(found, '^(%d+) ([01]) ([01]) (%-?%d) (%d+) (.*)$')
      loaded[lane] = { name = lane, counter = counter, leased = leased == '1', parked = parked == '1',
        priority = tonumber(priority), due = tonumber(due), key = key }
    end
  end
  return loaded[lane] or nil
end

local function laneOf(key)
  if key == '' then return nil end
  if named[key] == nil then named[key] = redis.call('HGET', LANES, 'k' .. key) end
  return named[key] or nil
end

local function save(l)
  loaded[l.name], fields[l.name] = l, l
end

local function encode(l)
  return l.counter .. (l.leased and ' 1' or ' 0') .. (l.parked and ' 1 ' or ' 0 ') .. l.priority .. ' ' .. text(l.due) .. ' ' .. l.key
end

-- move puts a lane into one of the sets, or removes it from both.
local function move(lane, set, score)
  for key, lanes in pairs(scores) do lanes[lane] = key == set and text(score) end
end

local function create(place, key, priority, since)
  local l = { name = pad(place), counter = '0', leased = false, parked = false, priority = priority, due = 0, key = key }
  if key ~= '' then named[key], fields['k' .. key] = l.name, l.name end
  save(l)
  move(l.name, READY, since - priority * AGING_MS)
  return l.name
end

local function forget(l)
  loaded[l.name], fields[l.name] = false, false
  if l.key ~= '' then named[l.key], fields['k' .. l.key] = false, false end
  move(l.name)
end

-- free ends the pause or the lease of a lane.
local function free(l, left)
  if not left then return forget(l) end
  if l.parked then
    move(l.name)
  elseif l.due > now then
    move(l.name, WAITING, l.due)
  else
    move(l.name, READY, now - l.priority * AGING_MS)
  end
  save(l)
end

local function write(command, key, list)
  if #list > 0 then redis.call(command, key, unpack(list)) end
end

local function flush()
  local set, removed = {}, {}
  for name, value in pairs(fields) do
    if value then
      set[#set + 1], set[#set + 2] = name, type(value) == 'table' and encode(value) or value
    else
      removed[#removed + 1] = name
    end
  end
  write('HDEL', LANES, removed)
  write('HSET', LANES, set)
  for key, lanes in pairs(scores) do
    set, removed = {}, {}
    for lane, score in pairs(lanes) do
      if score then
        set[#set + 1], set[#set + 2] = score, lane
      else
        removed[#removed + 1] = lane
      end
    end
    write('ZREM', key, removed)
    write('ZADD', key, set)
    scores[key] = {}
  end
  fields = {}
end

-- pending returns the first messages of a lane.
local function pending(lane, most)
  return redis.call('ZRANGEBYLEX', INDEX, '[' .. lane .. ':', '(' .. lane .. ';', 'LIMIT', 0, most)
end

-- parse returns the place and the entry of a member of index, parseDead those of dead.
local function parse(member) return string.sub(member, 18, 33), string.sub(member, 35) end

local function parseDead(member) return string.sub(member, 1, 16), string.sub(member, 18) end

local function added(entry) return tonumber(string.match(entry, '^%d+')) end

local function pairsOf(list)
  local fields = {}
  for i = 1, #list, 2 do fields[list[i]] = list[i + 1] end
  return fields
end

local function field(number, least, most)
  number = tonumber(number or '0')
  if not number or number ~= number then return 0 end
  return math.max(least, math.min(most, math.floor(number)))
end

local function note(place, failures, reason)
  redis.call('HSET', NOTES, place, text(failures) .. ' ' .. text(now) .. ' ' .. reason)
end

local function failures(found)
  return tonumber(string.match(found or '', '^%d+') or '0')
end

local function audit(...) redis.call('XADD', AUDIT, 'MAXLEN', '~', MAX_AUDIT, '*', ...) end
