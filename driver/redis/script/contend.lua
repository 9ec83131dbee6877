-- KEYS: the locks. ARGV: mode, channel, then owner and ttl for each name.
-- enqueue  takes the lock, or a place in the queue
-- nowait   takes the lock, or nothing
-- refresh  confirms a pushed grant or keeps a place; it never creates a place, so
--          that it cannot restore a waiter that has left
-- together takes all locks as nowait does, or nothing
-- The answer is a reply for each name; that of together is the number of the refused
-- name and its reply, or 0 and the replies of all. contend_one.lua and contend_free.lua
-- come before it.
local channel = ARGV[2]
local ttl -- of the name being handled

local function owner_of(i) return ARGV[2 * i + 1] end

-- stay records a waiter's heartbeat.
local function stay(k, waiter, place)
  if is_old(place) then
    redis.call('HSET', k.wait, waiter, now_text)
    redis.call('PEXPIRE', k.wait, ALIVE)
  end
  redis.call('PEXPIRE', k.queue, ALIVE)
end

-- await marks our holder's lock as awaited.
local function await(k)
  local value = redis.call('GET', k.lock)
  local begin, owner = string.match(value, '^(' .. OURS .. '%d+) (.*)$')
  if begin then redis.call('SET', k.lock, begin .. '+' .. owner, 'KEEPTTL') end
end

-- join takes a place, or keeps the present one. Returns the place.
local function join(k, waiter)
  local place = draw(COUNTER)
  if redis.call('ZADD', k.queue, 'NX', place, waiter) == 0 then
    place = redis.call('ZSCORE', k.queue, waiter)
    stay(k, waiter, place)
    return text(place)
  end
  touched[k.lock] = true
  redis.call('PEXPIRE', k.queue, ALIVE)
  list(k)
  await(k)
  return place
end

local function take(k, owner) return { 'granted', grant(k, owner, ttl) } end

local function confirm(k, owner, counter)
  if not counter then -- another client wrote the owner
    list(k)
    return take(k, owner)
  end
  redis.call('PEXPIRE', k.lock, ttl)
  return { 'granted', counter }
end

-- held answers with the lock's holder. Its begin is 0 for a foreign holder.
local function held(k, holder, counter)
  return { 'held', holder, counter and text(since(counter)) or '0', now_text, redis.call('PTTL', k.lock) }
end

-- awaited reports whether a live waiter is in the queue. Silent ones before it lose their
-- place.
local function awaited(k)
  while true do
    local head = redis.call('ZRANGE', k.queue, 0, 0, 'WITHSCORES')
    if not head[1] then return false end
    if heard(k, head[1], head[2]) + ALIVE_MS >= now then return true end
    leave(k, head[1])
  end
end

-- waiting answers with the place, and the holder's time to live, which is left out for
-- newcomers after others.
local function waiting(k, waiter, holder, place)
  if mode == 'refresh' then awaited(k) end
  local ahead, left = redis.call('ZRANK', k.queue, waiter), -1
  if ahead == 0 or mode == 'refresh' then left = redis.call('PTTL', k.lock) end
  return { 'waiting', holder, place, left, ahead }
end

-- serve grants a free lock to the first waiter, or to the caller if there is none. Returns
-- the caller's reply if it now holds the lock, or else the holder and its counter. A server with full memory
-- refuses only a script's first write, so that must not be one that frees memory.
local function serve(k, owner, waiter)
  list(k)
  local head, place = pop(k, nil, waiter)
  if not head or head == waiter then return take(k, owner) end
  return nil, push(k, head, place)
end

local function contend(k, owner)
  local waiter = channel .. ' ' .. owner
  local holder, counter = holder_of(k)
  if holder == owner then return confirm(k, owner, counter) end
  local place
  if mode == 'refresh' then
    place = redis.call('ZSCORE', k.queue, waiter)
    if not place then
      redis.call('HDEL', k.wait, waiter)
      return { 'gone' }
    end
    -- The call is a heartbeat: it is recorded before silent waiters are dropped.
    stay(k, waiter, place)
  end
  if not holder then
    local granted
    granted, holder, counter = serve(k, owner, waiter)
    if granted then return granted end
  end
  if mode == 'nowait' then
    leave(k, waiter)
    return held(k, holder, counter)
  end
  return waiting(k, waiter, holder, place and text(place) or join(k, waiter))
end

-- One name with damaged keys must not fail the others.
local function one(i)
  local k = keys_of(i)
  ttl = ARGV[2 * i + 2]
  local ok, reply = pcall(contend, k, owner_of(i))
  tell_watchers(k)
  if ok then return reply end
  local why = type(reply) == 'table' and reply.err or tostring(reply)
  if string.find(why, 'READONLY', 1, true) then error(reply, 0) end -- a replica can serve no name
  return { 'failed', why }
end

if mode == 'together' then
  -- barred reports whether another owner holds the lock, or a waiter awaits it. Damaged
  -- keys bar it, too.
  local function barred(i)
    local k = keys_of(i)
    local holder = holder_of(k)
    if holder then return holder ~= owner_of(i) end
    local bar = awaited(k)
    tell_watchers(k)
    return bar
  end

  -- give_back undoes a step that could not be finished.
  local function give_back(i)
    local k, owner = keys_of(i), owner_of(i)
    if holder_of(k) ~= owner then return end
    redis.call('DEL', k.lock)
    touched[k.lock] = true
    local head, place = pop(k)
    if head then push(k, head, place) else unlist(k) end
    tell_watchers(k)
  end

  -- together reads before it takes, so that a refusal writes nothing.
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

  mode = 'nowait'
  return together(names)
end
for i = 1, names do replies[i] = replies[i] or one(i) end
return names == 1 and replies[1] or replies
