-- The counter. clock.lua comes before it.
local function text(number) return format(whole, number) end
local now_text = text(now)

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
