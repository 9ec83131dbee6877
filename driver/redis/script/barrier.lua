-- KEYS: the branch's marker, the index of markers, the low-water mark, the transactions
-- that it excepts, then the body's. ARGV: member of the index, phase, hash, begun_ms,
-- transaction, then the body's. body.lua comes before, and MOVES: MOVES[state][phase] is
-- the outcome, and the next state; and MAX_RESULT. RESULT is that of the first call, or nil.
local phase, begun = ARGV[2], ARGV[4]
if tonumber(begun) < tonumber(redis.call('GET', KEYS[3]) or 0) and redis.call('SISMEMBER', KEYS[4], ARGV[5]) == 0 then
  return { 'forgotten', '', '', '0' }
end
local seen = redis.call('HMGET', KEYS[1], 'state', 'hash', 'result')
local state, hash, result = seen[1] or '', seen[2] or '', seen[3] or ''

local function answer(outcome, ran)
  if phase ~= 'first' or (outcome ~= 'done' and outcome ~= 'no') then result = '' end
  return { outcome, state, result, ran }
end

-- become stores the state, and the begin that the first call gave. A marker never
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
  value = body(rest(KEYS, 5), rest(ARGV, 6), known)
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
if phase == 'first' then
  result = value
  if #value > MAX_RESULT then
    result = 'its result has ' .. #value .. ' bytes, at most ' .. MAX_RESULT .. ' are stored'
    become('doubted')
    return { 'failed', state, result, '1' }
  end
end
become(next)
return answer('done', '1')
