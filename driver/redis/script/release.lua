-- KEYS: seven of one name. ARGV: owner. Gives up what owner has, whatever it is,
-- and hands a lock that is free then to the first waiter. Returns 1 if it was held.
-- holder is set by release_free.lua.
local owner, k = ARGV[1], keys_of(1)
local pushed

if holder == owner then
  redis.call('DEL', k.lock, k.hold)
  touched[k.lock] = true
else
  leave(k, owner)
  local _, _, of = record(k)
  if of == owner then redis.call('DEL', k.hold) end -- the lock was deleted or replaced by someone else
end

if holder == owner or not holder then
  local head = first_waiter(k)
  if head then pushed = push(k, head) end
end
if not pushed then unlist(k) end
tell_watchers(k)
return holder == owner and 1 or 0
