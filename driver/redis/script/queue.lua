-- What the scripts of queue mode share; each of them is this text and its own.
-- What draw.lua has comes before it.
--
-- A name is four keys of one hash slot, and two that it shares with others:
--   lock     string  the holder's owner, with a time to live; foreign clients use only this
--   hold     string  "counter since owner" of the holder, living as long as the lock
--   queue    zset    "channel owner" of those that wait, scored by the counter drawn for the place
--   wait     hash    the same -> when its last heartbeat came; of those that wait for long
--   COUNTER  string  the last counter drawn; never expires
--   INDEX    zset    locks that are held or awaited, all of score 0, so ordered by name
-- On one server both are those of the whole database, in a cluster those of the name's slot.

local function keys_of(i)
  local k = (i - 1) * 4
  return { lock = KEYS[k + 1], hold = KEYS[k + 2], queue = KEYS[k + 3], wait = KEYS[k + 4] }
end

-- may is whether the user may look at a lock, where the server tells.
local function may(lock) return not redis.acl_check_cmd or redis.acl_check_cmd('EXISTS', lock) end

-- prune looks at 32 names of the index, and at more while a quarter of them has ended, so
-- that what a dead process leaves does not pile up.
local function prune()
  for round = 1, 8 * names do
    local size = redis.call('ZCARD', INDEX)
    if size == 0 then return end
    local from, ended = (math.floor(now_us / 64) + round * 7919) % size, 0
    for _, lock in ipairs(redis.call('ZRANGE', INDEX, text(from), text(from + 31))) do
      if may(lock) and redis.pcall('EXISTS', lock) == 0 then
        ended = ended + redis.call('ZREM', INDEX, lock)
      end
    end
    if ended < 8 then return end
  end
end

local pruned = now_us % 64 > 0 -- one of 64 runs looks at the index

-- list puts the lock into the index, before it is granted: what is not is pruned.
local function list(k)
  if not pruned then
    pruned = true
    prune()
  end
  redis.call('ZADD', INDEX, '0', k.lock)
end

-- unlist takes the lock out of the index, unless somebody holds or awaits it.
local function unlist(k)
  if redis.call('EXISTS', k.hold, k.queue) == 0 then redis.call('ZREM', INDEX, k.lock) end
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
  local counter = draw(COUNTER)
  touched[k.lock] = true
  redis.call('SET', k.lock, owner, 'PX', ttl)
  redis.call('SET', k.hold, counter .. ' ' .. now_text .. ' ' .. owner, 'PX', ttl)
  return counter
end

local function leave(k, waiter)
  if redis.call('ZREM', k.queue, waiter) == 1 then touched[k.lock] = true end
  redis.call('HDEL', k.wait, waiter)
end

-- since is when the waiter of a place came.
local function since(place) return math.min(now, math.floor((place + EPOCH_US) / 1000)) end

-- is_old is whether a place can have heartbeats: that of one who came just now is not kept.
local function is_old(place) return now - since(place) >= BEAT_MS end

-- heard is when the waiter of a place was last heard of.
local function heard(k, waiter, place)
  return is_old(place) and tonumber(redis.call('HGET', k.wait, waiter)) or since(place)
end

-- pop takes out of the queue the first waiter who has been heard of lately, and those
-- before it, who have not. first is what ZPOPMIN returned already.
local function pop(k, first)
  while true do
    first = first or redis.call('ZPOPMIN', k.queue)
    local waiter, place = first[1], first[2]
    if not waiter then return nil end
    touched[k.lock] = true
    local at = heard(k, waiter, place)
    if is_old(place) then redis.call('HDEL', k.wait, waiter) end
    if at + ALIVE_MS >= now then return waiter, place end
    first = nil
  end
end

-- push grants the lock to a waiter, for a moment: it must confirm, and if it does not the
-- lock is free again soon. A push that is lost is found by the waiter's next heartbeat, so
-- its failure is none of the caller's business.
local function push(k, waiter, place)
  local channel, owner = string.match(waiter, '^(%S+) (.*)$')
  local counter = grant(k, owner, ACCEPT_MS)
  redis.pcall('PUBLISH', channel, counter .. ' ' .. text(place) .. ' ' .. owner)
  return owner
end
