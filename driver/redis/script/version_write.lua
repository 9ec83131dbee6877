-- KEYS: the state. ARGV: how, version, tie, deleted, terminal, data; then for
-- "apply" whether it applies to a newer state that is not terminal, and for
-- "replace" version and tie of the state to replace. A state is a hash. Versions
-- have 19 digits: Lua numbers are exact only to 2^53. They are compared byte by
-- byte, because Lua compares strings by the server's locale.
local function order(a, b)
  for i = 1, math.min(#a, #b) do
    local x, y = string.byte(a, i), string.byte(b, i)
    if x ~= y then return x < y and -1 or 1 end
  end
  return #a == #b and 0 or #a < #b and -1 or 1
end

local function compare(version, tie, other_version, other_tie)
  local by_version = order(version, other_version)
  if by_version ~= 0 then return by_version end
  return order(tie, other_tie)
end

local how, version, tie, terminal = ARGV[1], ARGV[2], ARGV[3], ARGV[5]
local seen = redis.call('HMGET', KEYS[1], 'version', 'tie', 'deleted', 'terminal', 'data')
local seen_version, seen_tie = seen[1] or string.rep('0', 19), seen[2] or ''
local newer = compare(version, tie, seen_version, seen_tie)

local outcome = 'applied'
if newer == 0 then
  outcome = 'duplicate'
elseif seen[4] == '1' then
  outcome = (newer < 0 and how == 'apply') and 'stale' or 'terminal'
elseif how == 'replace' then
  if compare(ARGV[7], ARGV[8], seen_version, seen_tie) ~= 0 then outcome = 'stale' end
elseif newer < 0 and ARGV[7] ~= '1' then
  outcome = 'stale'
end

if outcome == 'applied' then
  redis.call('HSET', KEYS[1], 'version', version, 'tie', tie, 'deleted', ARGV[4], 'terminal', terminal, 'data', ARGV[6])
  return { outcome }
end
return { outcome, seen[1], seen[2], seen[3], seen[4], seen[5] }
