-- buckets of limit.lua for one call, which takes a third less time. KEYS: the limit. ARGV: unit,
-- speed, capacity in units of level; then, unless both are 1, cost and least. Answers with the level
-- before the call. In unusual cases it changes nothing and answers -1: limit.lua then decides.
local call, floor, format = redis.call, math.floor, string.format
local clock, text, level = call('TIME'), redis.pcall('GET', KEYS[1]), 0
local now = clock[1] * 1000000 + clock[2]
local unit, speed, full, cost, least = ARGV[1] + 0, ARGV[2] + 0, ARGV[3] + 0, (ARGV[4] or 1) + 0, (ARGV[5] or 1) + 0
if text then
  if type(text) ~= 'string' then return -1 end
  local since, was, of = string.match(text, '^0 (%d+) (%d+) (%d+)$')
  if of ~= ARGV[1] then return -1 end
  local passed = now - since
  level = was + 0
  if passed < 0 or level > full then return -1 end
  level = level - passed * speed
  if level < 0 then level = 0 end
end
local granted = cost
if level + cost * unit > full then granted = floor((full - level) / unit) end
if granted >= least and granted > 0 then
  local after = level + granted * unit
  local ms = floor(after / speed / 1000) + 1001 -- until it has drained, and the skew
  if after < 2147483648 and ms < 2147483648 then -- %d is faster, and safe for integers of 32 bits
    text, ms = format('0 %d%06d %d ', now / 1000000, now % 1000000, after), format('%d', ms)
  else
    text, ms = format('0 %.0f %.0f ', now, after), format('%.0f', ms)
  end
  call('SET', KEYS[1], text .. ARGV[1], 'PX', ms)
end
return level
