-- driver.Lattice.Join in Lua. KEYS: the state, a hash: m and a field, with its greatest value;
-- a, a number of 19 digits and a replica, an addition with its element; s and a replica, whose
-- additions were seen, as "1-5 7-7". ARGV, each list after its length: fields and values;
-- additions and elements; replicas and ranges. Numbers are below 2^53.
local key, at = KEYS[1], 0

local function take()
  at = at + 1
  return ARGV[at]
end

-- greater compares byte by byte, because Lua compares strings by the server's locale.
local function greater(a, b)
  for i = 1, math.min(#a, #b) do
    local x, y = string.byte(a, i), string.byte(b, i)
    if x ~= y then return x > y end
  end
  return #a > #b
end

local function raise(field, value)
  local have = redis.call('HGET', key, field)
  if not have or greater(value, have) then redis.call('HSET', key, field, value) end
end

local function parse(text)
  local ranges = {}
  for first, last in string.gmatch(text or '', '(%d+)-(%d+)') do
    ranges[#ranges + 1] = { tonumber(first), tonumber(last) }
  end
  return ranges
end

local function contains(ranges, n)
  for _, r in ipairs(ranges or {}) do
    if n >= r[1] and n <= r[2] then return true end
  end
  return false
end

local function union(a, b)
  local all, words, first, last = {}, {}, nil, nil
  for _, r in ipairs(a) do all[#all + 1] = r end
  for _, r in ipairs(b) do all[#all + 1] = r end
  table.sort(all, function(x, y) return x[1] < y[1] end)
  for _, r in ipairs(all) do
    if last and r[1] <= last + 1 then
      last = math.max(last, r[2])
    else
      if last then words[#words + 1] = string.format('%.0f-%.0f', first, last) end
      first, last = r[1], r[2]
    end
  end
  words[#words + 1] = string.format('%.0f-%.0f', first, last)
  return table.concat(words, ' ')
end

-- of returns the number and the replica of an addition.
local function of(field) return tonumber(string.sub(field, 2, 20)), string.sub(field, 21) end

for _ = 1, tonumber(take()) do raise('m' .. take(), take()) end

local dots, seen, had, count = {}, {}, {}, 0
for _ = 1, tonumber(take()) do
  local field = 'a' .. take()
  dots[field] = take()
end
for _ = 1, tonumber(take()) do
  local replica = take()
  seen[replica], had[replica] = parse(take()), parse(redis.call('HGET', key, 's' .. replica))
  for _, r in ipairs(seen[replica]) do count = count + r[2] - r[1] + 1 end
end

-- Additions that the delta has seen but lacks were removed. Use the shorter way to find them.
if count > redis.call('HLEN', key) then
  for _, field in ipairs(redis.call('HKEYS', key)) do
    if string.sub(field, 1, 1) == 'a' and not dots[field] then
      local n, replica = of(field)
      if contains(seen[replica], n) then redis.call('HDEL', key, field) end
    end
  end
else
  for replica, ranges in pairs(seen) do
    for _, r in ipairs(ranges) do
      for n = r[1], r[2] do
        local field = 'a' .. string.format('%019.0f', n) .. replica
        if not dots[field] then redis.call('HDEL', key, field) end
      end
    end
  end
end
for field, element in pairs(dots) do
  local n, replica = of(field)
  if not contains(had[replica], n) or redis.call('HEXISTS', key, field) == 1 then raise(field, element) end
end
for replica, ranges in pairs(seen) do
  redis.call('HSET', key, 's' .. replica, union(had[replica], ranges))
end
return 'merged'
