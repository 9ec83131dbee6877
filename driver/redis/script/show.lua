-- KEYS: five for each name. Reads only. Returns for each name the holder, its
-- time to live, what is kept of it, and the waiters in order: owner, since, alive.
local replies = {}
for i = 1, #KEYS / 5 do
  local k, waiters = keys_of(i), {}
  for _, owner in ipairs(redis.call('ZRANGE', k.queue, 0, -1)) do
    local alive, since = string.match(redis.call('HGET', k.wait, owner) or '', '^(%d+) (%d+)')
    if alive and tonumber(alive) >= now then
      waiters[#waiters + 1] = { owner, since, text(tonumber(alive) - now) }
    end
  end
  local holder = redis.pcall('GET', k.lock)
  if type(holder) == 'table' then holder = '' end -- a foreign lock of another type
  local counter, since, of = record(k)
  if of ~= holder then counter, since = '', '' end
  replies[i] = { holder and 1 or 0, holder or '', redis.call('PTTL', k.lock), counter or '', since or '', waiters }
end
return replies
