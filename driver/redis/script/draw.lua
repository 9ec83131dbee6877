-- The time and the counter. EPOCH_US, MAX_COUNTER, ACCEPT_MS and CHANGES are set in front
-- of it. Times are the server's, in milliseconds. Numbers become text by %.0f only,
-- because tostring rounds what is above 14 digits.
local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now = math.floor(now_us / 1000)

local function text(number) return string.format('%.0f', number) end

-- entry is what stands for a lock in ends.
local function entry(lock, hold)
  return string.match(hold, '^interlock:{(%w+)}:') .. ':' .. lock
end

-- draw issues the next counter: above every one before it, and not below the
-- clock, so that lost data does not lower it.
local function draw(key)
  local previous = tonumber(redis.call('GET', key) or '0')
  if not previous then error({ err = 'ERR the key ' .. key .. ' holds no number' }) end
  local counter = math.max(previous + 1, now_us - EPOCH_US, 1)
  if counter > MAX_COUNTER then error({ err = 'ERR the counter ' .. key .. ' is used up' }) end
  redis.call('SET', key, text(counter))
  return text(counter)
end
