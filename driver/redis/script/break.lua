-- KEYS: the lock, the records of the slot. ARGV: the holder as the lock's
-- key names it, the owner as it is displayed, reason, by, how many records to keep,
-- the channel of Redisson's waiters. Takes the lock from that holder and grants it
-- to the first waiter. Returns the counter of the ended hold (0 if it had none) and
-- the time, or nothing.
local holder, owner, reason, by, keep = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local k, counter = keys_of(1), nil

-- is_holder reports whether the lock's key names holder, as a string or, for
-- Redisson, as a field of a hash.
local function is_holder()
  local kind = redis.call('TYPE', k.lock).ok
  if kind == 'string' then
    local named
    named, counter = holder_of(k)
    return named == holder
  end
  return kind == 'hash' and redis.call('HEXISTS', k.lock, holder) == 1
end

if not is_holder() then return {} end

counter = counter or '0'
draw(COUNTER) -- the next grant is above any counter of this one
redis.call('XADD', KEYS[2], 'MAXLEN', keep, '*', 'lock', k.lock, 'owner', owner,
  'reason', reason, 'by', by, 'counter', counter, 'at', now_text)
local foreign = redis.call('TYPE', k.lock).ok == 'hash'
redis.call('DEL', k.lock)
if foreign then redis.pcall('PUBLISH', ARGV[6], '0') end
touched[k.lock] = true
local head, place = pop(k)
if head then push(k, head, place) else unlist(k) end
tell_watchers(k)
return { counter, now_text }
