-- KEYS: seven for each name. ARGV: mode, alive, channel, then owner and ttl for each name.
-- enqueue  takes the lock, or a place in the queue
-- nowait   takes the lock, or nothing
-- refresh  confirms a pushed grant or keeps a place; never makes a new one, so
--          that it cannot bring back who has left
-- together takes all locks as nowait does, or nothing
-- The answer is a reply for each name; that of together is the number of the name
-- that is in the way, or 0, and then its reply, or those of all.
local mode, alive, channel = ARGV[1], ARGV[2], ARGV[3]
local ttl -- of the name that is looked at

local function owner_of(i) return ARGV[2 * i + 2] end

local function stay(k, owner, since)
  redis.call('HSET', k.wait, owner, text(now + alive) .. ' ' .. since .. ' ' .. channel)
  redis.call('PEXPIRE', k.wait, alive)
  redis.call('PEXPIRE', k.queue, alive)
end

-- waits is since when owner waits, or nil. A place has two parts, and an operator
-- or an eviction may take one of them: then there is no place.
local function waits(k, owner)
  local place = redis.call('HGET', k.wait, owner)
  if not place then return nil end
  if redis.call('ZRANK', k.queue, owner) then return string.match(place, '^%d+ (%d+)') end
  redis.call('HDEL', k.wait, owner)
end

local function join(k, owner)
  local last = redis.call('ZRANGE', k.queue, -1, -1, 'WITHSCORES')[2] or 0
  redis.call('ZADD', k.queue, text(last + 1), owner)
  touched[k.lock] = true
  stay(k, owner, text(now))
  list(k, alive)
end

local function take(k, owner, queued)
  if queued then leave(k, owner) end
  return { 'granted', grant(k, owner, ttl) }
end

local function confirm(k, owner)
  local counter, _, of = record(k)
  if of ~= owner then return take(k, owner) end
  redis.call('PEXPIRE', k.lock, ttl)
  redis.call('PEXPIRE', k.hold, ttl)
  return { 'granted', counter }
end

-- refusal tells who holds the lock. since is 0 for a foreign holder.
local function refusal(k, status, owner, holder)
  local _, since, of = record(k)
  if of ~= holder then since = '0' end
  local ahead = redis.call('ZRANK', k.queue, owner) or -1
  return { status, '0', holder or '', since, text(now), redis.call('PTTL', k.lock), ahead }
end

local function contend(k, owner)
  local holder = redis.call('GET', k.lock)
  if holder == owner then return confirm(k, owner) end
  local place = waits(k, owner)
  -- To call is to live: said before those who do not are dropped.
  if place then stay(k, owner, place) end
  local head = first_waiter(k)
  if not holder then
    if head == owner or (not head and mode ~= 'refresh') then return take(k, owner, place) end
    if head then holder = push(k, head) end
  end
  if mode == 'nowait' then
    leave(k, owner)
    return refusal(k, 'held', owner, holder)
  end
  if not place then
    if mode == 'refresh' then return { 'gone' } end
    join(k, owner)
  end
  return refusal(k, 'waiting', owner, holder)
end

-- One name whose keys are not what they should be must not fail the others.
local function one(i)
  local k = keys_of(i)
  ttl = ARGV[2 * i + 3]
  local ok, reply = pcall(contend, k, owner_of(i))
  tell_watchers(k)
  if not ok then reply = { 'failed', type(reply) == 'table' and reply.err or tostring(reply) } end
  return reply
end

-- barred is whether somebody else holds or awaits the lock. Keys that are not what
-- they should be bar it, too.
local function barred(i)
  local k, owner = keys_of(i), owner_of(i)
  local holder = redis.call('GET', k.lock)
  local first = holder or first_waiter(k)
  tell_watchers(k)
  return first and first ~= owner
end

-- give_back is the way out of a step that could not be finished.
local function give_back(i)
  local k, owner = keys_of(i), owner_of(i)
  if redis.pcall('GET', k.lock) ~= owner then return end
  redis.call('DEL', k.lock, k.hold)
  touched[k.lock] = true
  local head = first_waiter(k)
  if head then push(k, head) else unlist(k) end
  tell_watchers(k)
end

-- together looks before it takes, so that a refusal writes nothing.
local function together(n)
  local obstacle, answer = 0, { 0 }
  for i = n, 1, -1 do
    local ok, bar = pcall(barred, i)
    if bar or not ok then obstacle = i end
  end
  for i = 1, n do
    if obstacle > 0 then break end
    answer[i + 1] = one(i)
    if answer[i + 1][1] ~= 'granted' then obstacle = i end
  end
  if obstacle == 0 then return answer end
  local reply = answer[obstacle + 1] or one(obstacle)
  for i = 1, n do pcall(give_back, i) end
  return { obstacle, reply }
end

local names = (#ARGV - 3) / 2
if mode == 'together' then
  mode = 'nowait'
  return together(names)
end
local replies = {}
for i = 1, names do replies[i] = one(i) end
return replies
