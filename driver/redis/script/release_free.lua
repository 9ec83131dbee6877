-- Releases locks without waiters, without the rest of the script. KEYS and ARGV are those
-- of release.lua. Functions and tables cost the server more than commands, so one name
-- creates none.
local call = redis.pcall
local holder, first -- of one name: the holder, and the first waiter with its place, which it has removed
if names == 1 then
  local lock = KEYS[1]
  holder = call('GET', lock)
  if type(holder) == 'table' then return holder end -- an error
  if holder == ARGV[2] then
    first = call('ZPOPMIN', KEYS[3])
    if first.err then return first end
    if not first[1] then
      local deleted = call('DEL', lock, KEYS[2])
      if type(deleted) == 'table' then return deleted end
      local removed = call('ZREM', INDEX, lock)
      call('PUBLISH', CHANGES .. lock, '')
      return type(removed) == 'table' and removed or 1
    end
  end
end

-- failed returns the answer for a name with damaged keys. It fails no other.
local function failed(problem)
  return { err = type(problem) == 'table' and problem.err or tostring(problem) }
end

local holders, firsts, answers -- of several names, by name
if names > 1 then
  holders, firsts, answers = {}, {}, {}
  local released = 0

  -- release_together releases all names, or none. As contend_free.lua, it publishes only if
  -- there are subscriptions to patterns.
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
    local watched = call('PUBSUB', 'NUMPAT') ~= 0
    for i, lock in ipairs(locks) do
      if watched then call('PUBLISH', CHANGES .. lock, '') end
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
    call('PUBLISH', CHANGES .. KEYS[k + 1], '')
    answers[i], released = 1, released + 1
  end

  pcall(release_together)
  for i = 1, names do
    if not answers[i] then
      local ok, problem = pcall(release_free, i)
      if not ok then answers[i], released = failed(problem), released + 1 end
    end
  end
  if released == names then return answers end
end
