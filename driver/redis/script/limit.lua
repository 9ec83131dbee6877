-- driver.Decide in Lua. KEYS: the limit of each charge, a string of numbers. ARGV: groups, each
-- the number of its calls, the number of charges of a call, and for each charge: algorithm, count,
-- period, capacity, unit, speed, cost, least. A group of several calls has one charge for each,
-- with the same numbers. Times are microseconds; all numbers are integers below 2^53. The answer
-- has five numbers for each charge. If a key of a call is no limit the call consumes nothing, and
-- the key's first number is replaced by its content as text.
--
-- Most calls are one charge of GCRA that returns nothing. Their answer is one number, the level
-- before the call, from which the client computes the five. buckets decides them; it leaves
-- unusual ones, as a changed rate or clock, to rest, which is defined only when needed.
local call, tonumber = redis.call, tonumber
local clock = call('TIME')
local now = tonumber(clock[1]) * 1000000 + tonumber(clock[2])
local GCRA, WINDOW, COUNTER, LOG, SKEW = 0, 1, 2, 3, 1000000
local floor, max, min, format, match = math.floor, math.max, math.min, string.format, string.match
-- %d is faster for many keys, where the server's integers have 64 bits.
local whole = #KEYS > 1 and format('%d', 9007199254740992) == '9007199254740992' and '%d' or '%.0f'
local answer, key, at, size = {}, 1, 1, 0
local texts -- the keys' content before the script, for buckets
local written = {} -- key to text

local function ceil(a, b)
  if a <= 0 then return 0 end
  return floor((a - 1) / b) + 1
end

local function rest()
  local function since(t, at)
    if at - t.now > SKEW then
      t.rebased = true
    elseif at > t.now then
      t.now = at
    else
      return t.now - at
    end
    return 0
  end

  local function drain(t, s)
    local level = 0
    if #s == 4 then
      local passed = since(t, s[2])
      level = s[3]
      if s[4] ~= t.unit then level = min(ceil(level, s[4]), t.capacity) * t.unit end
      level = min(level, t.capacity * t.unit)
      level = level - min(level, min(passed, ceil(level, t.speed)) * t.speed)
    end
    t.state = { GCRA, t.now, level, t.unit }
  end

  local function roll(t, s)
    local window, count, before = 0, 0, 0
    if #s == 5 then
      since(t, s[2])
      window, count, before = s[3], min(s[4], t.count), min(s[5], t.count)
    end
    local present = floor(t.now / t.period)
    if t.rebased then
      window = present
    elseif present == window + 1 then
      window, count, before = present, 0, count
    elseif present ~= window then
      window, count, before = present, 0, 0
    end
    if t.algorithm == WINDOW then before = 0 end
    t.state = { t.algorithm, t.now, window, count, before }
  end

  local function forget(t, s)
    t.state = { LOG }
    if #s >= 3 then since(t, s[#s - 1]) end
    for i = 2, #s - 1, 2 do
      local at = min(s[i], t.now)
      if at > t.now - t.period then
        t.state[#t.state + 1] = at
        t.state[#t.state + 1] = s[i + 1]
      end
    end
  end

  local function used(t)
    local s = t.state
    if t.algorithm == GCRA then return s[3] end
    if t.algorithm ~= LOG then return s[4] * t.unit + s[5] * (t.unit - t.now % t.unit) end
    local level = 0
    for i = 3, #s, 2 do level = level + s[i] end
    return level
  end

  local function remaining(t) return floor(max(0, t.capacity * t.unit - used(t)) / t.unit) end

  local function wait(t, n)
    local s, period = t.state, t.period
    local left = period - t.now % period
    if t.algorithm == GCRA then return ceil(s[3] - (t.capacity - n) * t.unit, t.speed) end
    if t.algorithm == WINDOW then return left end
    if t.algorithm == COUNTER then
      local free = t.count - s[4] - n
      if free >= 0 then return left - floor(free * period / s[5]) end
      return left + max(0, period - floor((t.count - n) * period / s[4]))
    end
    local need = n - remaining(t)
    for i = 2, #s - 1, 2 do
      need = need - s[i + 1]
      if need <= 0 then return s[i] + period - t.now end
    end
    return period
  end

  local function reset(t)
    local s, left = t.state, t.period - t.now % t.period
    if t.algorithm == GCRA then return ceil(s[3], t.speed) end
    if t.algorithm == LOG then
      if #s > 1 then return s[#s - 1] + t.period - t.now end
      return 0
    end
    if t.algorithm == COUNTER and s[4] > 0 then return left + t.period end
    if s[4] + s[5] > 0 then return left end
    return 0
  end

  local function log(t, n)
    local s = t.state
    local last = #s - 1
    if n > 0 and last > 1 and s[last] == t.now then
      s[last + 1] = s[last + 1] + n
    elseif n > 0 then
      s[#s + 1] = t.now
      s[#s + 1] = n
    end
    while n < 0 and last > 1 do
      if s[last + 1] > -n then
        s[last + 1] = s[last + 1] + n
        return
      end
      n = n + s[last + 1]
      s[last], s[last + 1] = nil, nil
      last = last - 2
    end
  end

  local function consume(t, n)
    local s = t.state
    if t.algorithm == GCRA then
      s[3] = max(0, s[3] + max(n, -t.capacity) * t.unit)
    elseif t.algorithm ~= LOG then
      s[4] = max(0, s[4] + n)
    else
      log(t, n)
    end
  end

  local SIZES = { [GCRA] = 4, [WINDOW] = 5, [COUNTER] = 5 }

  -- parse works as driver.ParseLimitState; nil means no state.
  local function parse(text)
    local s = {}
    if text == '' then return s end
    for word in string.gmatch(text .. ' ', '(.-) ') do
      local n = string.find(word, '^%d+$') and tonumber(word)
      if not n or n > 9007199254740992 then return nil end
      s[#s + 1] = n
    end
    if s[1] == LOG and #s % 2 == 1 and #s <= 2001 then return s end
    if #s == SIZES[s[1]] and (s[1] ~= GCRA or s[4] > 0) then return s end
    return nil
  end

  -- read returns the numbers of a limit, or nil and the key's content. An error other than a
  -- wrong type ends the script.
  local function read(key)
    local text = redis.pcall('GET', key) or ''
    if type(text) == 'table' then
      if not string.find(text.err, 'WRONGTYPE', 1, true) then call('GET', key) end
      return nil, 'a ' .. call('TYPE', key).ok
    end
    local s = parse(text)
    return s, 'the text ' .. string.sub(text, 1, 100)
  end

  local function load(key, at)
    local t = { now = now, algorithm = tonumber(ARGV[at]), count = tonumber(ARGV[at + 1]), period = tonumber(ARGV[at + 2]),
      capacity = tonumber(ARGV[at + 3]), unit = tonumber(ARGV[at + 4]), speed = tonumber(ARGV[at + 5]),
      cost = tonumber(ARGV[at + 6]), least = tonumber(ARGV[at + 7]) }
    local s, held = read(key)
    if not s then
      t.held = held
      return t
    end
    if s[1] ~= t.algorithm then s = {} end
    if t.algorithm == GCRA then drain(t, s) elseif t.algorithm == LOG then forget(t, s) else roll(t, s) end
    return t
  end

  local function store(t, key)
    local words = {}
    for i, n in ipairs(t.state) do words[i] = format('%.0f', n) end
    written[key] = table.concat(words, ' ')
    call('SET', key, written[key], 'PX', format('%.0f', ceil(reset(t) + SKEW, 1000)))
  end

  local function decide(charges, short)
    local all = true
    for _, t in ipairs(charges) do
      t.granted = min(t.cost, remaining(t))
      t.allowed = t.granted >= t.least
      t.retry = 0
      if not t.allowed then t.retry, all = wait(t, t.least), false end
    end
    for i, t in ipairs(charges) do
      if short then
        size = size + 1
        answer[size] = t.state[3]
      end
      if not all then t.granted = 0 end
      consume(t, t.granted)
      if all and t.granted < t.cost then t.retry = wait(t, t.least) end
      if t.granted ~= 0 or t.rebased then store(t, KEYS[key + i - 1]) end
      for _, number in ipairs(short and {} or { t.allowed and 1 or 0, t.granted, remaining(t), t.retry, reset(t) }) do
        size = size + 1
        answer[size] = number
      end
    end
  end

  local function refuse(charges, short)
    for _, t in ipairs(charges) do
      for _, x in ipairs(short and { t.held } or { t.held or 0, 0, 0, 0, 0 }) do
        size = size + 1
        answer[size] = x
      end
    end
  end

  -- Decides the next call, of n charges; short means the answer of buckets.
  return function(n, short)
    local act, charges = decide, {}
    for i = 1, n do
      charges[i] = load(KEYS[key + i - 1], at + 2 + (i - 1) * 8)
      if charges[i].held then act = refuse end
    end
    act(charges, short)
  end
end

local general
local function other(n, short)
  general = general or rest()
  general(n, short)
end

-- buckets decides calls of one charge of GCRA, which return nothing.
local function buckets(calls)
  local unit, speed = tonumber(ARGV[at + 6]), tonumber(ARGV[at + 7])
  local cost, least, full = tonumber(ARGV[at + 8]), tonumber(ARGV[at + 9]), tonumber(ARGV[at + 5]) * unit
  local before, after, lasting, px = format('0 %.0f ', now), ' ' .. ARGV[at + 6], 0, ''
  texts = texts or #KEYS > 1 and call('MGET', unpack(KEYS)) or {}
  for _ = 1, calls do
    local name, level, usual = KEYS[key], 0, true
    local text = written[name] or texts[key] or redis.pcall('GET', name) -- MGET hides other types
    if text then
      usual = false
      if type(text) == 'string' then
        local since, was, of = match(text, '^0 (%d+) (%d+)( %d+)$')
        if of == after then
          local passed = now - since
          level = tonumber(was)
          if passed >= 0 and level <= full then
            level, usual = max(0, level - passed * speed), true
          end
        end
      end
    end
    if usual then
      size = size + 1
      answer[size] = level
      local granted = cost
      if level + cost * unit > full then granted = floor((full - level) / unit) end
      if granted >= least and granted > 0 then
        level = level + granted * unit
        local ms = floor(level / speed / 1000) + 1001 -- until it has drained, and SKEW
        if ms ~= lasting then lasting, px = ms, format(whole, ms) end
        text = before .. format(whole, level) .. after
        written[name] = text
        call('SET', name, text, 'PX', px)
      end
    else
      other(1, true)
    end
    key = key + 1
  end
end

while key <= #KEYS do
  local calls, n = tonumber(ARGV[at]), tonumber(ARGV[at + 1])
  if n == 1 and ARGV[at + 2] == '0' and tonumber(ARGV[at + 8]) >= 0 then
    buckets(calls)
  else
    for _ = 1, calls do
      other(n)
      key = key + n
    end
  end
  at = at + 2 + n * 8
end
return answer
