-- Grants a released lock to its first waiter, if that is too new to have heartbeats. As
-- contend_one.lua it creates nothing, and leaves anything else to the rest of the script.
repeat
  if not first or clock - first[2] >= (BEAT_MS - 1) * 1000 then break end
  local lock, waiter = KEYS[1], first[1]
  local last = call('GETSET', COUNTER, clock_text)
  if (tonumber(last or 0) or clock) >= clock then -- draw issues a counter above last
    if type(last) == 'string' then call('SET', COUNTER, last) end
    break
  end
  local space = string.find(waiter, ' ', 1, true)
  local owner = sub(waiter, space + 1)
  if not call('SET', lock, OURS .. format(padded, clock) .. '+' .. owner, 'PX', ACCEPT).ok then break end
  call('PUBLISH', sub(waiter, 1, space - 1), clock_text .. ' ' .. format(whole, first[2]) .. ' ' .. owner)
  call('PUBLISH', CHANGES .. lock, '')
  return 1
until true
