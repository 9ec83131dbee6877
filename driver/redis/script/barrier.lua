-- KEYS: the branch's marker, the index of markers, the low-water mark, then the
-- body's. ARGV: member of the index, phase, hash, begun_ms, then the body's. MOVES is
-- set in front of it: MOVES[state][phase] is what to do, and the state that follows.
-- The body comes first, so that it sees nothing of ours but that and refuse. RESULT is
-- that of the first, or nil.
local function refuse(why) return { refused = tostring(why) } end
local function body(KEYS, ARGV, RESULT)
--BODY--
end

local function rest(list, from)
  local out = {}
  for i = from, #list do out[i - from + 1] = list[i] end
  return out
end

-- text is what the body returned as it is stored; fails if that cannot be.
local function text(value)
  if not value or type(value) == 'table' and value.ok then return '' end
  if type(value) == 'string' then return value end
  if type(value) == 'number' and value % 1 == 0 then return string.format('%.0f', value) end
  if type(value) == 'table' and value.err then error(value.err, 0) end
  return cjson.encode(value)
end

local phase, begun = ARGV[2], ARGV[4]
if tonumber(begun) < tonumber(redis.call('GET', KEYS[3]) or 0) then return { 'forgotten', '', '', '0' } end
local seen = redis.call('HMGET', KEYS[1], 'state', 'hash', 'result')
local state, hash, result = seen[1] or '', seen[2] or '', seen[3] or ''

local function answer(outcome, ran)
  if phase ~= 'first' or (outcome ~= 'done' and outcome ~= 'no') then result = '' end
  return { outcome, state, result, ran }
end

-- become remembers the state, and the begin that the first call told. A marker never
-- expires.
local function become(next)
  if state == '' then redis.call('ZADD', KEYS[2], begun, ARGV[1]) end
  if state == '' or phase == 'first' then
    redis.call('HSET', KEYS[1], 'hash', hash, 'result', result)
  end
  state = next
  redis.call('HSET', KEYS[1], 'state', state)
end

if phase == 'first' and hash ~= '' and state ~= 'undone' and hash ~= ARGV[3] then return answer('other', '0') end
local outcome, next = unpack(MOVES[state][phase])
if outcome ~= 'run' then
  if next ~= state then become(next) end
  return answer(outcome, '0')
end

local known = nil
if state == 'done' then known = result end
local value, why
local ok, failure = pcall(function()
  value = body(rest(KEYS, 4), rest(ARGV, 5), known)
  if type(value) == 'table' and value.refused then
    why = value.refused
    if phase ~= 'first' then error('only a first may refuse: ' .. why, 0) end
  else
    value = text(value)
  end
end)
if phase == 'first' then hash = ARGV[3] end
if not ok then
  if phase == 'first' and state ~= 'started' then become('started') end
  return { 'failed', state, type(failure) == 'table' and failure.err or tostring(failure), '1' }
end
if why then
  result = why
  become(state == 'started' and 'doubted' or 'refused')
  return answer('no', '1')
end
if phase == 'first' then result = value end
become(next)
return answer('done', '1')
