-- KEYS: due. ARGV: prefix of records, lapsed_us, attempts, limit, prefix of members.
-- Returns for each record: member, fingerprint, owner, attempt, until, created, now.
-- The records' keys are in the slot of due. It reads a thousand leases at a time.
local found, seen, limit, attempts = {}, 0, tonumber(ARGV[4]), tonumber(ARGV[3])
repeat
  local members = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', text(now - tonumber(ARGV[2])), 'LIMIT', seen, 1000)
  seen = seen + #members
  for _, member in ipairs(members) do
    if #found < limit and member:sub(1, #ARGV[5]) == ARGV[5] then
      local r = redis.call('HMGET', ARGV[1] .. member, 'fingerprint', 'owner', 'attempt', 'until', 'created')
      if r[1] and (attempts == 0 or tonumber(r[3]) < attempts) then
        found[#found + 1] = { member, r[1], r[2], r[3], r[4], r[5], text(now) }
      end
    end
  end
until #members < 1000 or #found >= limit
return found
