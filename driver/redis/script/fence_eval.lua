-- KEYS: the mark, then the body's. ARGV: counter, sub, token, source, strict,
-- ahead_us, then the body's. The body replaces the line below.
local refused = enter(KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6])
if refused then return refused end
local function rest(list, from)
  local out = {}
  for i = from, #list do out[i - from + 1] = list[i] end
  return out
end
local function body(KEYS, ARGV)
--BODY--
end
local ok, result = pcall(body, rest(KEYS, 2), rest(ARGV, 7))
if not ok then return { 'failed', type(result) == 'table' and result.err or tostring(result) } end
return { 'entered', result }
