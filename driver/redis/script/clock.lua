-- The server's clock. EPOCH_US and other constants are defined before it.
local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now = (now_us - now_us % 1000) / 1000 -- in milliseconds
local clock = now_us - EPOCH_US -- the counter of this moment
if clock < 1 then clock = 1 end

-- Lua's own conversion of numbers rounds them to 14 digits: enough for now, not for a
-- counter. %d is faster, but 32 bits wide on some servers.
local format, whole, padded = string.format, '%d', '%016d'
local clock_text = format(whole, clock)
if #clock_text < 12 then
  whole, padded = '%.0f', '%016.0f'
  clock_text = format(whole, clock)
end
