-- Grants the free names of a run for several, and leaves the others to the rest of the
-- script. KEYS and ARGV are those of contend.lua. Returns the counter of each.
local replies, granted = {}, 0

-- find_free lists all names, and returns the indexes of the free ones. If the index had none
-- of them, nobody waits for any.
local function find_free()
  local free, listed = {}, {}
  for i = 1, names do free[i], listed[2 * i - 1], listed[2 * i] = i, '0', KEYS[i] end
  if redis.call('ZADD', INDEX, unpack(listed)) == names then return free end
  free = {}
  for i = 1, names do
    if redis.call('EXISTS', KEYS[i], KEY .. 'waiting:' .. KEYS[i]) == 0 then free[#free + 1] = i end
  end
  return free
end

-- grant_all grants the free names, with counters drawn at once. A name can be in one run
-- twice, and another client can hold it: the lock is granted once. It publishes only if
-- there are subscriptions to patterns, which watchers use.
local function grant_all(free)
  if #free == 0 then return end
  local first = tonumber(draw(COUNTER, #free > 1 and #free - 1 or nil))
  local watched = call('PUBSUB', 'NUMPAT') ~= 0
  for n, i in ipairs(free) do
    local lock, counter = KEYS[i], first + n - 1
    local set = call('SET', lock, OURS .. format(padded, counter) .. ' ' .. ARGV[2 * i + 1], 'NX', 'PX', ARGV[2 * i + 2])
    if set and set.ok then
      if watched then call('PUBLISH', CHANGES .. lock, '') end
      replies[i], granted = counter, granted + 1
    end
  end
end

if usual and names > 1 then
  local ok, free = pcall(find_free)
  if ok then pcall(grant_all, free) end
  if granted == names then return replies end
end
