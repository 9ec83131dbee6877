-- What the scripts of a queue share. KEYS: the stream, and the queue's own:
--   lanes    n: the last place, last: the last entry that was indexed, and blanks, k<KEY>: the lane
--            of a key, <LANE>: "COUNTER LEASED PARKED PRIORITY DUE MESSAGES KEY". Values above 64
--            bytes keep Redis from storing the hash as a list, which it would search from its start
--   index    <LANE>:<PLACE>:<ENTRY> of each unfinished message that no lease has, in this order
--   ready    lanes by the time since which they wait, earlier by AGING_MS for each priority
--   waiting  lanes by the time at which their lease or their pause ends
--   notes    of a place: "FAILURES TIME REASON"
--   dead     <PLACE>:<ENTRY> of each dead letter
--   unique   the entry that has a unique text
--   audit    a stream of manual operations
-- A lane is the unit of a lease: the messages of a key, or one without a key. It is named by
-- the place of its first message. Lanes and places have 16 digits, so that they sort as text.
-- MESSAGES has "<PLACE>:<ENTRY>," of each unsettled message of the lease, also after its end
-- until the lane is leased again.
local STREAM, LANES, INDEX, READY, WAITING, NOTES, DEAD, UNIQUE, AUDIT, COUNTER = unpack(KEYS, 1, 10)

local find, sub = string.find, string.sub
local padded = whole == '%d' and '%016d' or '%016.0f'
local function pad(number) return format(padded, number) end

-- A script reads lanes once, and flush writes its changes to them together: loaded has lanes by
-- name, fields and scores the writes. False means missing. Scores are texts.
local loaded, fields, scores = {}, {}, { [READY] = {}, [WAITING] = {} }

-- Writes of the usual lanes are lists at once: fields of LANES with their values, and leases with
-- their names; names of fields, and of lanes that have neither lease nor pause any more.
local written, leases, dropped, ended = {}, {}, {}, {}

-- USUAL follows the counter of a lease that is neither parked nor paused, of normal priority.
local USUAL = ' 1 0 0 0 '

-- decode parses the record of a lane.
local function decode(lane, record)
  local counter, leased, parked, priority, due, messages, key = string.match(record, '^(%d+) ([01]) ([01]) (%-?%d) (%d+) ([%d:%-,]*) (.*)$')
  local l = { name = lane, counter = counter, leased = leased == '1', parked = parked == '1',
    priority = priority == '0' and 0 or tonumber(priority), due = due == '0' and 0 or tonumber(due), messages = messages, key = key }
  loaded[lane] = l
  return l
end

-- load reads lanes by one command.
local function load(names)
  if #names == 0 then return end
  for i, found in ipairs(redis.call('HMGET', LANES, unpack(names))) do
    if found and not loaded[names[i]] then decode(names[i], found) end
  end
end

local function laneOf(key)
  local lane = key ~= '' and redis.call('HGET', LANES, 'k' .. key)
  if not lane then return nil end
  load({ lane })
  return loaded[lane]
end

local function save(l)
  loaded[l.name], fields[l.name] = l, l
end

-- encode formats no number that is usual: that is slow.
local function encode(l)
  return l.counter .. (l.leased and ' 1' or ' 0') .. (l.parked and ' 1 ' or ' 0 ') .. (l.priority == 0 and '0' or l.priority) ..
    ' ' .. (l.due == 0 and '0' or text(l.due)) .. ' ' .. l.messages .. ' ' .. l.key
end

-- move puts a lane into one of the sets, or removes it from both.
local function move(lane, set, score)
  scores[READY][lane] = set == READY and score
  scores[WAITING][lane] = set == WAITING and score
end

-- ready makes a lane ready since a time.
local function ready(l, since)
  move(l.name, READY, text(since - l.priority * AGING_MS))
end

-- prioritize gives a lane the priority of its last message.
local function prioritize(l, priority)
  if l.priority == priority then return end
  local since = redis.call('ZSCORE', READY, l.name)
  if since then redis.call('ZADD', READY, text(since + (l.priority - priority) * AGING_MS), l.name) end
  l.priority = priority
  save(l)
end

local function create(place, key, priority)
  return { name = place, counter = '0', leased = false, parked = false, priority = priority, due = 0, messages = '', key = key }
end

-- insert writes a new lane.
local function insert(l)
  if l.key ~= '' then fields['k' .. l.key] = l.name end
  save(l)
end

local function forget(l)
  loaded[l.name], fields[l.name] = false, false
  if l.key ~= '' then fields['k' .. l.key] = false end
  move(l.name)
end

-- free ends the pause or the lease of a lane.
local function free(l, left)
  if not left then return forget(l) end
  if l.parked then
    move(l.name)
  elseif l.due > now then
    move(l.name, WAITING, text(l.due))
  else
    ready(l, now)
  end
  save(l)
end

-- write passes a list to a command, in parts: Lua can unpack about 8,000 values.
local function write(command, key, list)
  for i = 1, #list, 4000 do
    redis.call(command, key, unpack(list, i, math.min(i + 3999, #list)))
  end
end

local function flush()
  local set, removed = written, dropped
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
    set, removed = key == WAITING and leases or {}, { unpack(ended) }
    for lane, score in pairs(lanes) do
      if score then
        set[#set + 1], set[#set + 2] = score, lane
      else
        removed[#removed + 1] = lane
      end
    end
    if #removed > 0 and redis.call('EXISTS', key) == 1 then write('ZREM', key, removed) end
    write('ZADD', key, set)
    scores[key] = {}
  end
  fields, written, leases, dropped, ended = {}, {}, {}, {}, {}
end

-- pending returns the first messages of a lane in the index, leased those of its lease as members
-- of the index.
local function pending(lane, most)
  return redis.call('ZRANGEBYLEX', INDEX, '[' .. lane .. ':', '(' .. lane .. ';', 'LIMIT', 0, most)
end

local function leased(l)
  local members = {}
  if l.messages == '' then return members end
  for message in string.gmatch(l.messages, '[^,]+') do members[#members + 1] = l.name .. ':' .. message end
  return members
end

-- parse returns the place and the entry of a member of index, parseDead those of dead.
local function parse(member) return sub(member, 18, 33), sub(member, 35) end

local function parseDead(member) return sub(member, 1, 16), sub(member, 18) end

local function timeOf(entry) return tonumber(string.match(entry, '^%d+')) end

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

-- first returns the place and the entry of the first message of a lane.
local function first(l)
  local of_lease, of_index = leased(l)[1], pending(l.name, 1)[1]
  local member = of_lease or of_index
  if of_lease and of_index and of_index < of_lease then member = of_index end
  if member then return parse(member) end
end

local function note(place, failures, reason)
  redis.call('HSET', NOTES, place, text(failures) .. ' ' .. text(now) .. ' ' .. reason)
end

local function failures(found)
  return tonumber(string.match(found or '', '^%d+') or '0')
end

local function audit(...) redis.call('XADD', AUDIT, 'MAXLEN', '~', MAX_AUDIT, '*', ...) end
