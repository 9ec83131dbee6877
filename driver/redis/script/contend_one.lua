-- The usual request for one name: grants it if it is free and nobody waits, or queues a
-- new waiter of a holder. Functions and tables cost the server more than commands, so it
-- creates none. Anything else is left to the rest of the script, which repeats it from the
-- start: also an error, and one of 64 runs, which prunes the index. KEYS and ARGV are those
-- of contend.lua. Returns the counter of the grant, or the reply to a waiter.
local mode, call, sub = ARGV[1], redis.pcall, string.sub
local usual = (mode == 'enqueue' or mode == 'nowait') and now_us % 64 > 0
repeat -- a break leaves the name to the rest of the script
  if not usual or names > 1 then break end
  local lock, owner = KEYS[1], ARGV[3]
  local new, value = call('ZADD', INDEX, '0', lock)
  if new ~= 1 then
    value = new == 0 and mode == 'enqueue' and call('GET', lock)
    if type(value) ~= 'string' or sub(value, OWNER_AT) == owner then break end
  end

  local last = call('GETSET', COUNTER, clock_text)
  if (tonumber(last or 0) or clock) >= clock then -- draw issues a counter above last
    if type(last) == 'string' then call('SET', COUNTER, last) end
    break
  end
  if not value then -- the index had no such lock, so nobody waits
    local set = call('SET', lock, OURS .. format(padded, clock) .. ' ' .. owner, 'NX', 'PX', ARGV[4])
    if not set or not set.ok then -- another client holds it
      call('ZREM', INDEX, lock)
      break
    end
    call('PUBLISH', CHANGES .. lock, '')
    return clock
  end
  local holder, ahead = value, nil
  if sub(value, 1, #OURS) == OURS then
    holder = sub(value, OWNER_AT)
    if sub(value, OWNER_AT - 1, OWNER_AT - 1) == ' ' then
      ahead = 0
      if not call('SET', lock, sub(value, 1, OWNER_AT - 2) .. '+' .. holder, 'KEEPTTL').ok then break end
    end
  end
  local queue, waiter = KEY .. 'waiting:' .. lock, ARGV[2] .. ' ' .. owner
  if call('ZADD', queue, 'NX', clock_text, waiter) ~= 1 then break end
  call('PEXPIRE', queue, ALIVE)
  call('PUBLISH', CHANGES .. lock, '')
  ahead = ahead or call('ZRANK', queue, waiter)
  return { 'waiting', holder, clock, ahead == 0 and call('PTTL', lock) or -1, ahead }
until true
