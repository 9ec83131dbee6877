-- What the scripts of queue mode share; each of them is this text and its own.
-- What draw.lua has comes before it.
--
-- A name is seven keys of one hash slot:
--   lock     string  the holder's owner, with a time to live; foreign clients use only this
--   hold     string  "counter since owner" of the holder, living as long as the lock
--   queue    zset    owners that wait, scored in order of arrival
--   wait     hash    owner -> "alive since channel" of each of them
--   counter  string  the last counter drawn in this slot; never expires
--   names    zset    locks that are held or awaited, all of score 0, so ordered by name
--   ends     zset    "TAG:lock" of the same, scored by when to look whether they still are
-- On one server names and ends are those of the whole database, and their slot is not
-- that of the name.

local function keys_of(i)
  local k = (i - 1) * 7
  return { lock = KEYS[k + 1], hold = KEYS[k + 2], queue = KEYS[k + 3], wait = KEYS[k + 4], counter = KEYS[k + 5],
    names = KEYS[k + 6], ends = KEYS[k + 7] }
end

-- prune looks at two of the entries that may have ended, so that what a dead process
-- leaves in the index does not pile up.
local function prune(k)
  for _, old in ipairs(redis.call('ZRANGEBYSCORE', k.ends, '-inf', text(now), 'LIMIT', 0, 2)) do
    local tag, lock = string.match(old, '^(%w+):(.*)$')
    local own = 'interlock:{' .. tag .. '}:'
    local left = math.max(redis.call('PTTL', own .. 'hold:' .. lock), redis.call('PTTL', own .. 'queue:' .. lock))
    if left >= 0 then
      redis.call('ZADD', k.ends, text(now + left + 1), old)
    else
      redis.call('ZREM', k.names, lock)
      redis.call('ZREM', k.ends, old)
    end
  end
end

-- list puts the lock into the index, for ms at least.
local function list(k, ms)
  prune(k)
  redis.call('ZADD', k.names, 0, k.lock)
  redis.call('ZADD', k.ends, text(now + ms), entry(k.lock, k.hold))
end

-- unlist takes the lock out of the index, unless somebody holds or awaits it.
local function unlist(k)
  if redis.call('EXISTS', k.hold, k.queue) > 0 then return end
  redis.call('ZREM', k.names, k.lock)
  redis.call('ZREM', k.ends, entry(k.lock, k.hold))
end

-- touched are the names whose holder or waiters changed. tell_watchers says so,
-- once for each script and name; what a watcher misses it finds by looking again,
-- so a failure (no right to publish) is none of the caller's business.
local touched = {}

local function tell_watchers(k)
  if not touched[k.lock] then return end
  touched[k.lock] = nil
  redis.pcall('PUBLISH', CHANGES .. k.lock, '')
end

-- record is what is kept of the holder: counter, since, owner.
local function record(k)
  return string.match(redis.call('GET', k.hold) or '', '^(%d+) (%d+) (.*)$')
end

local function grant(k, owner, ttl)
  local counter = draw(k.counter)
  touched[k.lock] = true
  redis.call('SET', k.lock, owner, 'PX', ttl)
  redis.call('SET', k.hold, counter .. ' ' .. text(now) .. ' ' .. owner, 'PX', ttl)
  list(k, ttl)
  return counter
end

local function leave(k, owner)
  if redis.call('ZREM', k.queue, owner) == 1 then touched[k.lock] = true end
  redis.call('HDEL', k.wait, owner)
end

-- first_waiter is the first in the queue who has been heard of lately. Those
-- before it, who have not, lose their place.
local function first_waiter(k)
  while true do
    local owner = redis.call('ZRANGE', k.queue, 0, 0)[1]
    if not owner then return nil end
    local place = redis.call('HGET', k.wait, owner) or ''
    if (tonumber(string.match(place, '^%d+')) or 0) >= now then return owner end
    leave(k, owner)
  end
end

-- push grants the free lock to a waiter, for a moment: it must confirm, and if
-- it cannot the lock is free again soon. A push that is lost is found by the
-- waiter's next heartbeat, so its failure is none of the caller's business.
local function push(k, owner)
  local channel = string.match(redis.call('HGET', k.wait, owner), '^%d+ %d+ (.*)$')
  leave(k, owner)
  grant(k, owner, ACCEPT_MS)
  redis.pcall('PUBLISH', channel, owner)
  return owner
end
