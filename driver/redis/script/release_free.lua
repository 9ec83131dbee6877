-- Locks that nobody awaits are released here, without the rest of the script.
-- KEYS and ARGV are those of release.lua.
local names = #ARGV - 1
local holders, firsts = {}, {} -- by name: who holds it, and the first in the queue with its place, taken out of it
local answers, released = {}, 0

local function release_free(i)
  local k = 6 * i - 6
  holders[i] = redis.call('GET', KEYS[k + 1])
  if holders[i] ~= ARGV[i + 1] then return end
  firsts[i] = redis.call('ZPOPMIN', KEYS[k + 3])
  if firsts[i][1] then return end
  redis.call('DEL', KEYS[k + 1], KEYS[k + 2])
  redis.call('ZREM', KEYS[k + 6], KEYS[k + 1])
  redis.pcall('PUBLISH', CHANGES .. KEYS[k + 1], '')
  answers[i], released = 1, released + 1
end

-- failed is the answer for a name whose keys are not what they should be. It fails no other.
local function failed(problem)
  return { err = type(problem) == 'table' and problem.err or tostring(problem) }
end

for i = 1, names do
  local ok, problem = pcall(release_free, i)
  if not ok then answers[i], released = failed(problem), released + 1 end
end
if released == names then return names == 1 and answers[1] or answers end
