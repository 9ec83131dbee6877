-- The usual request for one name: grants it if it is free and nobody waits, or queues a
-- new waiter of a holder. Functions and tables cost the server more than commands, so it
-- creates none. Anything else is left to the rest of the script, which repeats it from the
-- start: also an error, and one of 64 runs, which prunes the index. KEYS and ARGV are those
-- of contend.lua. Returns the counter of the grant, or the reply to a waiter.
local mode, call = ARGV[1], redis.pcall
local usual = (mode == 'enqueue' or mode == 'nowait') and now_us % 64 > 0
local found -- how many of the lock and the queue exist
repeat -- a break leaves the name to the rest of the script
  if not usual or names > 1 then break end
  local lock, hold, queue, owner = KEYS[1], KEYS[2], KEYS[3], ARGV[3]
  found = call('EXISTS', lock, queue)
  local holder = false
  if found ~= 0 then
    if mode == 'nowait' then break end
    holder = call('GET', lock)
    if type(holder) ~= 'string' or holder == owner then break end
  end
  -- Earlier waiters have listed the lock already.
  if found ~= 2 and type(call('ZADD', INDEX, '0', lock)) ~= 'number' then break end

  local last = call('GETSET', COUNTER, clock_text)
  if (tonumber(last or 0) or clock) >= clock then -- draw issues a counter above last
    if type(last) == 'string' then call('SET', COUNTER, last) end
    break
  end
  if not holder then
    if not call('SET', lock, owner, 'PX', ARGV[4]).ok then break end
    if not call('PSETEX', hold, ARGV[4], clock_text .. ' ' .. now .. ' ' .. owner).ok then break end
    call('PUBLISH', CHANGES .. lock, '')
    return clock
  end
  local waiter = ARGV[2] .. ' ' .. owner
  if call('ZADD', queue, 'NX', clock_text, waiter) ~= 1 then break end
  call('PEXPIRE', queue, ALIVE)
  call('PUBLISH', CHANGES .. lock, '')
  if found == 1 then return { 'waiting', holder, clock, call('PTTL', lock), 0 } end
  return { 'waiting', holder, clock, -1, call('ZRANK', queue, waiter) }
until true
