-- The time and the counter. EPOCH_US, MAX_COUNTER and other constants are defined before
-- it. Times are the server's, in milliseconds. Use text() to format numbers, because
-- tostring rounds them to 14 digits.
local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now = math.floor(now_us / 1000)

-- %d is faster, but 32 bits wide on some servers.
local whole = string.format('%d', 2^40) == '1099511627776' and '%d' or '%.0f'
local function text(number) return string.format(whole, number) end

local clock = math.max(now_us - EPOCH_US, 1)
local now_text, clock_text = text(now), text(clock)

-- draw issues the next counter, and as many as more after it: above all earlier ones, and
-- not below the clock, so that lost data does not lower them. Returns the first.
local function draw(key, more)
  local last = redis.call('GETSET', key, more and text(clock + more) or clock_text)
  local previous = tonumber(last or '0')
  if previous and previous < clock then return clock_text end
  if previous and previous + (more or 0) < MAX_COUNTER then
    redis.call('SET', key, text(previous + 1 + (more or 0)))
    return text(previous + 1)
  end
  redis.call('SET', key, last)
  error({ err = 'ERR the key ' .. key .. (previous and ' is used up' or ' holds no number') })
end
