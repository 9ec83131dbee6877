-- Common part of the scripts of the fence. EPOCH_US is defined before it. The mark
-- of a resource is a hash: counter and sub, compared as numbers, each exact below
-- 2^53; token, the whole as text; source and raised (ms), for operators.
local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now = string.format('%.0f', math.floor(now_us / 1000))

local function set_mark(key, counter, sub, token, source)
  redis.call('HSET', key, 'counter', counter, 'sub', sub, 'token', token, 'source', source, 'raised', now)
end

-- implausible reports whether a counter is too far above the clock. Such a mark
-- would reject all later tokens.
local function implausible(counter, ahead_us)
  return tonumber(counter) > now_us - EPOCH_US + tonumber(ahead_us)
end

-- enter raises the mark, or returns why not.
local function enter(key, counter, sub, token, source, strict, ahead_us)
  local seen = redis.call('HMGET', key, 'counter', 'sub', 'token')
  local c, s, seen_c, seen_s = tonumber(counter), tonumber(sub), tonumber(seen[1] or 0), tonumber(seen[2] or 0)
  if seen_c > c or (seen_c == c and (seen_s > s or (seen_s == s and strict == '1'))) then
    return { 'stale', seen[3] }
  end
  if implausible(counter, ahead_us) then return { 'implausible' } end
  set_mark(key, counter, sub, token, source)
  return nil
end
