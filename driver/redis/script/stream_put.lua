-- KEYS: those of the queue, then one for each message if ids are remembered. ARGV: for how many
-- ms they are, or 0, then seven for each message: id, key, headers, unique text, delay in ms,
-- priority, payload. Skips a message with a remembered id, or with the unique text of an
-- unfinished one. Answers with how many were added.
local count = 0
for i = 2, #ARGV, 7 do
  local id, unique, seen = ARGV[i], ARGV[i + 3], KEYS[10 + (i + 5) / 7]
  local there = seen and redis.call('EXISTS', seen) == 1
  if not there and not (unique ~= '' and redis.call('HEXISTS', UNIQUE, unique) == 1) then
    local entry = { 'XADD', STREAM, '*' }
    for n, name in ipairs({ 'id', 'key', 'headers', 'unique', 'delay', 'priority', 'payload' }) do
      local value = ARGV[i + n - 1]
      if value ~= '' or name == 'payload' then
        entry[#entry + 1], entry[#entry + 2] = name, value
      end
    end
    redis.call(unpack(entry)) -- first: a refused message is not remembered
    if unique ~= '' then redis.call('HSET', UNIQUE, unique, id) end
    if seen then redis.call('SET', seen, '', 'PX', ARGV[1]) end
    count = count + 1
  end
end
return count
