-- KEYS: those of the queue, then one for each message if ids are remembered. ARGV: for how many
-- ms they are, or 0, and the group, then seven for each message: id, key, headers, unique text, delay
-- in ms, priority, payload. Skips a message with a remembered id, or with the unique text of an
-- unfinished one. Answers with how many were added.
local count = 0

-- isTaken reports whether an unfinished message has a unique text. An entry that was trimmed from the
-- stream counts while it is pending in the group.
local function isTaken(unique)
  local entry = unique ~= '' and redis.call('HGET', UNIQUE, unique)
  return entry and (#redis.call('XRANGE', STREAM, entry, entry) > 0 or #redis.pcall('XPENDING', STREAM, ARGV[2], entry, entry, 1) > 0)
end

-- isNew remembers an id, and reports whether it was not remembered.
local function isNew(seen) return not seen or redis.call('SET', seen, '', 'PX', ARGV[1], 'NX') end

for i = 3, #ARGV, 7 do
  local unique, seen = ARGV[i + 3], KEYS[10 + (i + 4) / 7]
  if not isTaken(unique) and isNew(seen) then
    local entry = { 'XADD', STREAM, '*' }
    for n, name in ipairs({ 'id', 'key', 'headers', 'unique', 'delay', 'priority', 'payload' }) do
      local value = ARGV[i + n - 1]
      if value ~= '' or name == 'payload' then
        entry[#entry + 1], entry[#entry + 2] = name, value
      end
    end
    local added = redis.pcall(unpack(entry))
    if type(added) == 'table' then -- refused
      if seen then redis.call('DEL', seen) end
      error(added)
    end
    if unique ~= '' then redis.call('HSET', UNIQUE, unique, added) end
    count = count + 1
  end
end
return count
