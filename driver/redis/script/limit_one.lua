-- buckets of limit.lua for one call, which takes a third less time. KEYS: the limit. ARGV: unit,
-- speed, capacity in units of level, cost, least. Answers with the level before the call. In
-- unusual cases it changes nothing and answers -1: limit.lua then decides.
local unit, speed, full, cost, least = ARGV[1] + 0, ARGV[2] + 0, ARGV[3] + 0, ARGV[4] + 0, ARGV[5] + 0
local clock, text, level = redis.call('TIME'), redis.pcall('GET', KEYS[1]), 0
local now = clock[1] * 1000000 + clock[2]
if text then
  if type(text) ~= 'string' then return -1 end
  local since, was, of = string.match(text, '^0 (%d+) (%d+) (%d+)$')
  if of ~= ARGV[1] or now < since + 0 or was + 0 > full then return -1 end
  level = math.max(0, was - (now - since) * speed)
end
local granted = cost
if level + cost * unit > full then granted = math.floor((full - level) / unit) end
if granted >= least and granted > 0 then
  local after = level + granted * unit
  local ms = math.floor(after / speed / 1000) + 1001 -- until it has drained, and the skew
  redis.call('SET', KEYS[1], string.format('0 %.0f %.0f ', now, after) .. ARGV[1], 'PX', string.format('%.0f', ms))
end
return level
