-- What the scripts of the stock share. MAX is set in front of it.
-- An item is five keys of one hash slot:
--   KEYS[1]  hash  supply, held (expired or not) and sold
--   KEYS[2]  hash  reservation -> "state units expires"
--   KEYS[3]  zset  reservations that are held, scored by when they expire
--   KEYS[4]  hash  operation -> its difference
--   KEYS[5]  zset  "r" reservation and "o" operation, scored by when they are forgotten
-- Times are the server's, in milliseconds. Numbers become text by %.0f only,
-- because tostring rounds what is above 14 digits.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function text(number) return string.format('%.0f', number) end

local level = redis.call('HMGET', KEYS[1], 'supply', 'held', 'sold')
local known = level[1]
local supply, held, sold = tonumber(level[1] or 0), tonumber(level[2] or 0), tonumber(level[3] or 0)

local function save()
  redis.call('HSET', KEYS[1], 'supply', text(supply), 'held', text(held), 'sold', text(sold))
end

local function find(id)
  local state, n, expires = string.match(redis.call('HGET', KEYS[2], id) or '', '^(%a+) (%d+) (%d+)$')
  if not state then return nil end
  return { state = state, n = tonumber(n), expires = tonumber(expires) }
end

local function record(id, r)
  redis.call('HSET', KEYS[2], id, r.state .. ' ' .. text(r.n) .. ' ' .. text(r.expires))
end

-- unhold ends a hold listed in KEYS[3].
local function unhold(id, r, state)
  redis.call('ZREM', KEYS[3], id)
  held = held - r.n
  r.state = state
end

-- forget removes a few ids whose retention has ended.
local function forget()
  for _, old in ipairs(redis.call('ZRANGEBYSCORE', KEYS[5], '-inf', text(now), 'LIMIT', 0, 10)) do
    local id = string.sub(old, 2)
    if string.sub(old, 1, 1) == 'o' then
      redis.call('HDEL', KEYS[4], id)
    else
      local r = find(id)
      if r and r.state == 'held' then
        unhold(id, r, 'expired')
        save()
      end
      redis.call('HDEL', KEYS[2], id)
    end
    redis.call('ZREM', KEYS[5], old)
  end
end

-- room makes n units available by ending the holds that expired first. If that is
-- not enough it changes nothing and returns the refusal. It does not save.
local function room(n)
  local available, gifts = supply - held - sold, {}
  while available < n do
    local due = redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', text(now), 'LIMIT', #gifts, 100)
    if #due == 0 then return { 'short', text(n), text(available) } end
    for _, id in ipairs(due) do
      if available >= n then break end
      local r = find(id)
      available = available + r.n
      gifts[#gifts + 1] = { id = id, r = r }
    end
  end
  for _, gift in ipairs(gifts) do
    unhold(gift.id, gift.r, 'expired')
    record(gift.id, gift.r)
  end
  return nil
end
