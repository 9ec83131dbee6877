-- What the scripts of a queue share. KEYS: the stream, and the queue's own:
--   lanes    n: the last place, last: the last entry that was indexed, k<KEY>: the lane of a
--            key, <LANE>: "COUNTER LEASED PARKED PRIORITY DUE KEY"
--   index    <LANE>:<PLACE>:<ENTRY> of each unfinished message, in this order
--   ready    lanes by the time since which they wait, earlier by AGING_MS for each priority
--   waiting  lanes by the time at which their lease or their pause ends
--   notes    of a place: "FAILURES TIME REASON"
--   dead     <PLACE>:<ENTRY> of each dead letter
--   unique   the message that has a unique text
--   audit    a stream of what was done by hand
-- A lane is what is leased at once: the messages of a key, or one without a key. It is named by
-- the place of its first message. Lanes and places have 16 digits, so that they sort as text.
local STREAM, LANES, INDEX, READY, WAITING, NOTES, DEAD, UNIQUE, AUDIT, COUNTER = unpack(KEYS, 1, 10)

local function pad(number) return string.format('%016.0f', number) end

local function load(lane)
  local found = redis.call('HGET', LANES, lane)
  if not found then return nil end
  local counter, leased, parked, priority, due, key = string.match(found, '^(%d+) ([01]) ([01]) (%-?%d) (%d+) (.*)$')
  return { name = lane, counter = counter, leased = leased == '1', parked = parked == '1',
    priority = tonumber(priority), due = tonumber(due), key = key }
end

local function save(l)
  redis.call('HSET', LANES, l.name, l.counter .. (l.leased and ' 1' or ' 0') .. (l.parked and ' 1 ' or ' 0 ') ..
    l.priority .. ' ' .. text(l.due) .. ' ' .. l.key)
end

local function create(place, key, priority, since)
  local l = { name = pad(place), counter = '0', leased = false, parked = false, priority = priority, due = 0, key = key }
  if key ~= '' then redis.call('HSET', LANES, 'k' .. key, l.name) end
  save(l)
  redis.call('ZADD', READY, text(since - priority * AGING_MS), l.name)
end

local function forget(l)
  redis.call('HDEL', LANES, l.name)
  if l.key ~= '' then redis.call('HDEL', LANES, 'k' .. l.key) end
end

-- pending are the first messages of a lane.
local function pending(lane, most)
  return redis.call('ZRANGEBYLEX', INDEX, '[' .. lane .. ':', '(' .. lane .. ';', 'LIMIT', 0, most)
end

-- free ends the pause or the lease of a lane.
local function free(l)
  redis.call('ZREM', WAITING, l.name)
  redis.call('ZREM', READY, l.name)
  if #pending(l.name, 1) == 0 then return forget(l) end
  if not l.parked then
    if l.due > now then
      redis.call('ZADD', WAITING, text(l.due), l.name)
    else
      redis.call('ZADD', READY, text(now - l.priority * AGING_MS), l.name)
    end
  end
  save(l)
end

local function parse(member) return string.match(member, '(%d+):([%d-]+)$') end

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
