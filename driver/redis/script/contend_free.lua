-- Free names that nobody awaits are granted here, without the rest of the script. If
-- anything is unusual about a name it is not granted here, and the rest of the script
-- decides; it also looks after the index, in one of 64 runs.
-- KEYS and ARGV are those of contend.lua. Returns the counter of the name, or of each.
local mode, names = ARGV[1], (#ARGV - 2) / 2
local taken = {} -- by name: how many of its lock and queue there are
local replies, granted = {}, 0

-- find_free looks at all names at once, and at each if one is not free. It lists those
-- that are.
local function find_free()
  local keys, free = {}, {}
  for i = 1, names do keys[2 * i - 1], keys[2 * i] = KEYS[6 * i - 5], KEYS[6 * i - 3] end
  local all = redis.call('EXISTS', unpack(keys))
  for i = 1, names do
    taken[i] = (all == 0 or names == 1) and all or redis.call('EXISTS', keys[2 * i - 1], keys[2 * i])
    if taken[i] == 0 then
      free[#free + 1] = 0
      free[#free + 1] = keys[2 * i - 1]
    end
  end
  if #free > 0 then redis.call('ZADD', KEYS[6], unpack(free)) end
end

-- A name can be in one run twice: the lock is given once.
local function grant_free(i)
  local k = 6 * i - 6
  local lock, owner, ttl, counter = KEYS[k + 1], ARGV[2 * i + 1], ARGV[2 * i + 2], draw(KEYS[k + 5])
  if not redis.call('SET', lock, owner, 'NX', 'PX', ttl) then return end
  redis.call('SET', KEYS[k + 2], counter .. ' ' .. now_text .. ' ' .. owner, 'PX', ttl)
  redis.pcall('PUBLISH', CHANGES .. lock, '')
  replies[i], granted = counter, granted + 1
end

if (mode == 'enqueue' or mode == 'nowait') and now_us % 64 > 0 and pcall(find_free) then
  for i = 1, names do
    if taken[i] == 0 then pcall(grant_free, i) end
  end
  if granted == names then return names == 1 and replies[1] or replies end
end
