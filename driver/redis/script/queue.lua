-- Common part of the scripts of queue mode, each of which follows this text.
-- draw.lua comes before it.
--
-- A name is three keys of one hash slot, and two that it shares with others:
--   lock     string  of ours: OURS, the counter in 16 digits, '+' or ' ', and the owner, with
--                    a time to live. ' ' means that nobody waits. Foreign values are others.
--   waiting  zset    "channel owner" of those that wait, scored by the counter drawn for the place
--   heard    hash    the same -> when its last heartbeat came; of those that wait for long
--   COUNTER  string  the last counter drawn; never expires
--   INDEX    zset    at least the locks that we hold and those that are awaited, all of score
--                    0, so ordered by name
-- On one server both are those of the whole database, in a cluster those of the name's slot.

local function queue_of(lock) return KEY .. 'waiting:' .. lock end

local function keys_of(i)
  local lock = KEYS[i]
  return { lock = lock, queue = queue_of(lock), wait = KEY .. 'heard:' .. lock }
end

-- may reports whether the user may read a lock, if the server can tell.
local function may(lock) return not redis.acl_check_cmd or redis.acl_check_cmd('EXISTS', lock) end

-- prune checks 32 names of the index, and more while a quarter of them has ended, so that
-- names of dead processes do not accumulate.
local function prune()
  for round = 1, 8 * names do
    local size = redis.call('ZCARD', INDEX)
    if size == 0 then return end
    local from, ended = (math.floor(now_us / 64) + round * 7919) % size, 0
    for _, lock in ipairs(redis.call('ZRANGE', INDEX, text(from), text(from + 31))) do
      if may(lock) and redis.pcall('EXISTS', lock, queue_of(lock)) == 0 then
        ended = ended + redis.call('ZREM', INDEX, lock)
      end
    end
    if ended < 8 then return end
  end
end

local pruned = now_us % 64 > 0 -- one of 64 runs checks the index

-- list adds the lock to the index, before its grant: names that are not held are pruned.
local function list(k)
  if not pruned then
    pruned = true
    prune()
  end
  redis.call('ZADD', INDEX, '0', k.lock)
end

-- holder_in returns the owner in the value of a lock, and the counter if it is ours.
local function holder_in(value)
  local counter, owner = string.match(value or '', '^' .. OURS .. '0*(%d+)[ +](.*)$')
  return owner or value, counter
end

local function holder_of(k) return holder_in(redis.call('GET', k.lock)) end

-- unlist removes the lock from the index, unless we hold it or it is awaited.
local function unlist(k)
  local _, counter = holder_of(k)
  if not counter and redis.call('EXISTS', k.queue) == 0 then redis.call('ZREM', INDEX, k.lock) end
end

-- touched are the names whose holder or waiters changed. tell_watchers publishes
-- them, once for each script and name. Watchers find missed ones when they rescan,
-- so a failure (no right to publish) does not concern the caller.
local touched = {}

local function tell_watchers(k)
  if not touched[k.lock] then return end
  touched[k.lock] = nil
  redis.pcall('PUBLISH', CHANGES .. k.lock, '')
end

local function grant(k, owner, ttl)
  local counter = draw(COUNTER)
  touched[k.lock] = true
  redis.call('SET', k.lock, OURS .. format(padded, counter) .. '+' .. owner, 'PX', ttl)
  return counter
end

local function leave(k, waiter)
  if redis.call('ZREM', k.queue, waiter) == 1 then touched[k.lock] = true end
  redis.call('HDEL', k.wait, waiter)
end

-- since returns when the waiter of a place arrived.
local function since(place) return math.min(now, math.floor((place + EPOCH_US) / 1000)) end

-- is_old reports whether a place can have heartbeats; that of a new place is not stored.
local function is_old(place) return now - since(place) >= BEAT_MS end

-- heard returns the time of the waiter's last heartbeat.
local function heard(k, waiter, place)
  return is_old(place) and tonumber(redis.call('HGET', k.wait, waiter)) or since(place)
end

-- listens reports whether the waiter's process receives pushes. It does not know that in a
-- cluster, where the process may have subscribed on any node.
local function listens(waiter)
  return CLUSTER or redis.pcall('PUBSUB', 'NUMSUB', string.match(waiter, '^%S+'))[2] ~= 0
end

-- pop removes the first live waiter from the queue, and the silent ones before it. Waiters
-- whose processes do not listen keep their places and are passed over, except for me, and
-- unless all are such, or more than 64. first is what ZPOPMIN already returned.
local function pop(k, first, me)
  local passed, chosen = {}, nil
  while not chosen and #passed <= 64 do
    first = first or redis.call('ZPOPMIN', k.queue)
    local waiter, place = first[1], first[2]
    if not waiter then break end
    touched[k.lock] = true
    if heard(k, waiter, place) + ALIVE_MS < now then
      if is_old(place) then redis.call('HDEL', k.wait, waiter) end
    elseif waiter == me or listens(waiter) then
      chosen = first
    else
      passed[#passed + 1] = first
    end
    first = nil
  end
  chosen = chosen or table.remove(passed, 1)
  for _, one in ipairs(passed) do redis.call('ZADD', k.queue, one[2], one[1]) end
  if #passed > 0 then redis.call('PEXPIRE', k.queue, ALIVE) end
  if not chosen then return nil end
  if is_old(chosen[2]) then redis.call('HDEL', k.wait, chosen[1]) end
  return chosen[1], chosen[2]
end

-- push grants the lock to a waiter for a short time, unless it confirms. A lost push is
-- found by the waiter's next heartbeat, so its failure does not concern the caller.
local function push(k, waiter, place)
  local channel, owner = string.match(waiter, '^(%S+) (.*)$')
  local counter = grant(k, owner, ACCEPT)
  redis.pcall('PUBLISH', channel, counter .. ' ' .. text(place) .. ' ' .. owner)
  return owner, counter
end
