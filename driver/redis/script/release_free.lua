-- Releases locks without waiters, without the rest of the script. KEYS and ARGV are those
-- of release.lua. Functions and tables cost the server more than commands, so one name
-- creates none.
local call, sub = redis.pcall, string.sub
local value, first -- of one name: the lock's value, and the first waiter with its place, which it has removed
if names == 1 then
  local lock = KEYS[1]
  value = call('GET', lock)
  if type(value) == 'table' then return value end -- an error
  if value and sub(value, OWNER_AT) == ARGV[2] then
    if sub(value, OWNER_AT - 1, OWNER_AT - 1) == '+' then
      first = call('ZPOPMIN', KEY .. 'waiting:' .. lock)
      if first.err then return first end
    end
    if not first or not first[1] then
      local deleted = call('DEL', lock)
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

local values, firsts, answers -- of several names, by name
if names > 1 then
  values, firsts, answers = {}, {}, {}
  local released = 0

  -- release_together releases all names, or none. As contend_free.lua, it publishes only if
  -- there are subscriptions to patterns.
  local function release_together()
    for i, value in ipairs(redis.call('MGET', unpack(KEYS))) do
      if not value or sub(value, OWNER_AT - 1) ~= ' ' .. ARGV[i + 1] then return end
    end
    redis.call('DEL', unpack(KEYS))
    redis.call('ZREM', INDEX, unpack(KEYS))
    local watched = call('PUBSUB', 'NUMPAT') ~= 0
    for i, lock in ipairs(KEYS) do
      if watched then call('PUBLISH', CHANGES .. lock, '') end
      answers[i] = 1
    end
    released = names
  end

  local function release_free(i)
    local lock = KEYS[i]
    values[i] = redis.call('GET', lock)
    if not values[i] or sub(values[i], OWNER_AT) ~= ARGV[i + 1] then return end
    firsts[i] = redis.call('ZPOPMIN', KEY .. 'waiting:' .. lock)
    if firsts[i][1] then return end
    redis.call('DEL', lock)
    redis.call('ZREM', INDEX, lock)
    call('PUBLISH', CHANGES .. lock, '')
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
