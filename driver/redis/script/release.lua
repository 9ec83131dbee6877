-- KEYS: six of one name. ARGV: owner, channel. Gives up what owner has, whatever it is,
-- and hands a lock that is free then to the first waiter. Returns 1 if it was held.
-- holder and first are set by release_free.lua.
local owner, k = ARGV[1], keys_of(1)

if holder ~= owner then
  leave(k, ARGV[2] .. ' ' .. owner)
  local _, _, of = record(k)
  if of == owner then redis.call('DEL', k.hold) end -- the lock was deleted or replaced by someone else
end

local waiter, place
if holder == owner or not holder then waiter, place = pop(k, first) end
if waiter then
  push(k, waiter, place)
else
  if holder == owner then redis.call('DEL', k.lock, k.hold) end
  unlist(k)
end
tell_watchers(k)
return holder == owner and 1 or 0
