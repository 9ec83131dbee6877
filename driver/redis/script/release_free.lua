-- Releases locks without waiters, without the rest of the script. KEYS and ARGV are
-- those of release.lua.

-- release_one releases one name. Tables and functions cost the server time, so it uses few.
local holder, first -- the holder, and the first waiter with its place, removed from the queue
local function release_one()
  local call, lock = redis.call, KEYS[1]
  holder = call('GET', lock)
  if holder ~= ARGV[2] then return end
  first = call('ZPOPMIN', KEYS[3])
  if first[1] then return end
  call('DEL', lock, KEYS[2])
  call('ZREM', INDEX, lock)
  redis.pcall('PUBLISH', CHANGES .. KEYS[1], '')
  return 1
end

-- failed returns the answer for a name with damaged keys. It fails no other.
local function failed(problem)
  return { err = type(problem) == 'table' and problem.err or tostring(problem) }
end

if names == 1 then
  local ok, answer = pcall(release_one)
  if answer then return ok and answer or failed(answer) end
end

local holders, firsts = { holder }, { first } -- by name
local answers, released = {}, 0

-- release_together releases all names, or none.
local function release_together()
  local locks, queues, keys = {}, {}, {}
  for i = 1, names do
    local k = 4 * i - 4
    locks[i], queues[i], keys[2 * i - 1], keys[2 * i] = KEYS[k + 1], KEYS[k + 3], KEYS[k + 1], KEYS[k + 2]
  end
  for i, holder in ipairs(redis.call('MGET', unpack(locks))) do
    if holder ~= ARGV[i + 1] then return end
  end
  if redis.call('EXISTS', unpack(queues)) > 0 then return end
  redis.call('DEL', unpack(keys))
  redis.call('ZREM', INDEX, unpack(locks))
  local watched = redis.pcall('PUBSUB', 'NUMPAT') ~= 0 -- as in contend_free.lua
  for i, lock in ipairs(locks) do
    if watched then redis.pcall('PUBLISH', CHANGES .. lock, '') end
    answers[i] = 1
  end
  released = names
end

local function release_free(i)
  local k = 4 * i - 4
  holders[i] = redis.call('GET', KEYS[k + 1])
  if holders[i] ~= ARGV[i + 1] then return end
  firsts[i] = redis.call('ZPOPMIN', KEYS[k + 3])
  if firsts[i][1] then return end
  redis.call('DEL', KEYS[k + 1], KEYS[k + 2])
  redis.call('ZREM', INDEX, KEYS[k + 1])
  redis.pcall('PUBLISH', CHANGES .. KEYS[k + 1], '')
  answers[i], released = 1, released + 1
end

if names > 1 then
  pcall(release_together)
  for i = 1, names do
    if not answers[i] then
      local ok, problem = pcall(release_free, i)
      if not ok then answers[i], released = failed(problem), released + 1 end
    end
  end
  if released == names then return answers end
end
