-- Grants the free names of a run for several, and leaves the others to the rest of the
-- script. KEYS and ARGV are those of contend.lua. Returns the counter of each.
local taken = { found } -- by name: how many of the lock and the queue exist
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

-- grant_all grants the free names, with counters drawn at once. A name can be in one run
-- twice: the lock is granted once. It publishes only if there are subscriptions to
-- patterns, which watchers use.
local function grant_all(free)
  if #free == 0 then return end
  local first = tonumber(draw(COUNTER, #free > 1 and #free - 1 or nil))
  local watched, since = call('PUBSUB', 'NUMPAT') ~= 0, ' ' .. now_text .. ' '
  for n, i in ipairs(free) do
    local k, owner, ttl, counter = 4 * i - 4, ARGV[2 * i + 1], ARGV[2 * i + 2], first + n - 1
    local set = call('SET', KEYS[k + 1], owner, 'NX', 'PX', ttl)
    if set and set.ok and call('PSETEX', KEYS[k + 2], ttl, format(whole, counter) .. since .. owner).ok then
      if watched then call('PUBLISH', CHANGES .. KEYS[k + 1], '') end
      replies[i], granted = counter, granted + 1
    end
  end
end

if usual and names > 1 then
  local ok, free = pcall(find_free)
  if ok then pcall(grant_all, free) end
  if granted == names then return replies end
end
