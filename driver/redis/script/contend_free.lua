-- Free names that nobody awaits are granted here, without the rest of the script. If
-- anything is unusual about a name it is not granted here, and the rest of the script
-- decides; it also looks after the index, in one of 64 runs.
-- KEYS and ARGV are those of contend.lua. Returns the counter of the name, or of each.
local mode, names = ARGV[1], (#ARGV - 2) / 2
local taken = {} -- by name: how many of its lock and queue there are
local replies, granted = {}, 0

local function grant_free(i)
  local k = 6 * i - 6
  taken[i] = redis.call('EXISTS', KEYS[k + 1], KEYS[k + 3])
  if taken[i] > 0 then return end
  local owner, ttl, counter = ARGV[2 * i + 1], ARGV[2 * i + 2], draw(KEYS[k + 5])
  redis.call('ZADD', KEYS[k + 6], 0, KEYS[k + 1])
  redis.call('SET', KEYS[k + 1], owner, 'PX', ttl)
  redis.call('SET', KEYS[k + 2], counter .. ' ' .. text(now) .. ' ' .. owner, 'PX', ttl)
  redis.pcall('PUBLISH', CHANGES .. KEYS[k + 1], '')
  replies[i], granted = counter, granted + 1
end

if (mode == 'enqueue' or mode == 'nowait') and now_us % 64 > 0 then
  for i = 1, names do pcall(grant_free, i) end
  if granted == names then return names == 1 and replies[1] or replies end
end
