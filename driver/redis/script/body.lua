-- The head of every script that runs a user's body. The body comes first, so that it sees
-- only refuse of ours. RESULT is nil unless the script passes one.
local function refuse(why) return { refused = tostring(why) } end
local function body(KEYS, ARGV, RESULT)
--BODY--
end

local function rest(list, from)
  local out = {}
  for i = from, #list do out[i - from + 1] = list[i] end
  return out
end

-- text returns the body's result as it is stored; it fails if that is impossible.
local function text(value)
  if not value or type(value) == 'table' and value.ok then return '' end
  if type(value) == 'string' then return value end
  if type(value) == 'number' and value % 1 == 0 then return string.format('%.0f', value) end
  if type(value) == 'table' and value.err then error(value.err, 0) end
  return cjson.encode(value)
end
