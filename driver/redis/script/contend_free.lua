-- Grants free names without waiters, without the rest of the script. A name with
-- anything unusual is left to the rest of the script, which also prunes the index, in
-- one of 64 runs. KEYS and ARGV are those of contend.lua. Returns the counter of the
-- name, or of each.
local mode = ARGV[1]
local usual = (mode == 'enqueue' or mode == 'nowait') and now_us % 64 > 0

-- grant_one grants one name. Tables and functions cost the server time, so it uses few.
local found -- how many of its lock and queue exist
local function grant_one()
  local call, lock = redis.call, KEYS[1]
  found = call('EXISTS', lock, KEYS[3])
  if found > 0 then return end
  call('ZADD', INDEX, '0', lock)
  local counter = draw(COUNTER)
  call('SET', lock, ARGV[3], 'PX', ARGV[4])
  call('SET', KEYS[2], counter .. ' ' .. now_text .. ' ' .. ARGV[3], 'PX', ARGV[4])
  redis.pcall('PUBLISH', CHANGES .. KEYS[1], '')
  return counter
end

if usual and names == 1 then
  local ok, counter = pcall(grant_one)
  if ok and counter then return counter end
  usual = false
end

local taken = { found } -- by name
local replies, granted = {}, 0

-- find_free checks all names at once, and each if one is not free. It lists the free
-- ones, and returns their indexes.
local function find_free()
  local keys, free, listed = {}, {}, {}
  for i = 1, names do keys[2 * i - 1], keys[2 * i] = KEYS[4 * i - 3], KEYS[4 * i - 1] end
  local all = redis.call('EXISTS', unpack(keys))
  for i = 1, names do
    taken[i] = all == 0 and 0 or redis.call('EXISTS', keys[2 * i - 1], keys[2 * i])
    if taken[i] == 0 then
      local n = #free
      free[n + 1], listed[2 * n + 1], listed[2 * n + 2] = i, '0', keys[2 * i - 1]
    end
  end
  if #free > 0 then redis.call('ZADD', INDEX, unpack(listed)) end
  return free
end

-- A name can be in one run twice: the lock is granted once.
local function grant_free(i, counter, watched)
  local k = 4 * i - 4
  local lock, owner, ttl = KEYS[k + 1], ARGV[2 * i + 1], ARGV[2 * i + 2]
  if not redis.call('SET', lock, owner, 'NX', 'PX', ttl) then return end
  redis.call('SET', KEYS[k + 2], counter .. ' ' .. now_text .. ' ' .. owner, 'PX', ttl)
  if watched then redis.pcall('PUBLISH', CHANGES .. lock, '') end
  replies[i], granted = counter, granted + 1
end

-- grant_all grants the free names, with counters drawn at once. It publishes only if there
-- are subscriptions to patterns, which watchers use.
local function grant_all(free)
  if #free == 0 then return end
  local first = draw(COUNTER, #free > 1 and #free - 1 or nil)
  local watched = redis.pcall('PUBSUB', 'NUMPAT') ~= 0
  for n, i in ipairs(free) do pcall(grant_free, i, n == 1 and first or text(first + n - 1), watched) end
end

if usual then
  local ok, free = pcall(find_free)
  if ok then pcall(grant_all, free) end
  if granted == names then return replies end
end
