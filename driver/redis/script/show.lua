-- KEYS: the locks, then for each two of Redisson's: its list of waiters and their
-- deadlines. Only reads, and accepts any type of key. Returns for each name the type of its
-- key, the holder that the key names, its time to live, the counter and the begin of a
-- holder of ours, the waiters in order (owner, since, alive), the fields of a hash, and
-- Redisson's waiters (owner, alive).
names = names / 3
local MOST = 1024 -- a longer string, or a hash of more fields, is no lock
local replies = {}

local function content(key)
  local kind = redis.call('TYPE', key).ok
  if kind == 'string' and redis.call('STRLEN', key) <= MOST then return kind, redis.call('GET', key), {} end
  if kind == 'hash' and redis.call('HLEN', key) <= MOST then return kind, '', redis.call('HGETALL', key) end
  return kind == 'string' and 'long string' or kind, '', {}
end

local function waiters_of(k)
  local waiters, queue = {}, redis.call('ZRANGE', k.queue, 0, -1, 'WITHSCORES')
  for i = 1, #queue, 2 do
    local waiter, place = queue[i], queue[i + 1]
    local left = heard(k, waiter, place) + ALIVE_MS - now
    if left >= 0 then
      waiters[#waiters + 1] = { string.match(waiter, '^%S+ (.*)$'), text(since(place)), text(left) }
    end
  end
  return waiters
end

local function redisson_waiters(list, deadlines)
  local waiters, owners = {}, redis.pcall('LRANGE', list, 0, MOST)
  if owners.err then return waiters end
  for i, owner in ipairs(owners) do
    local deadline = tonumber(redis.pcall('ZSCORE', deadlines, owner)) or now
    waiters[i] = { owner, text(math.max(0, deadline - now)) }
  end
  return waiters
end

for i = 1, names do
  local k = keys_of(i)
  local kind, value, fields = content(k.lock)
  local holder, counter = holder_in(value)
  replies[i] = { kind, holder, redis.call('PTTL', k.lock), counter or '', counter and text(since(counter)) or '', waiters_of(k),
    fields, redisson_waiters(KEYS[names + 2 * i - 1], KEYS[names + 2 * i]) }
end
return replies
