-- ARGV: group, and a cursor, which starts and ends as 0. Answers with the next cursor, the numbers
-- of unfinished and dead messages, and for some lanes: how many are leased, how many parked, the
-- age of the oldest message in ms (or -1), and those that are stuck, each with the place, failures,
-- entry and fields of its first message, 1 if it is parked, the time until it is due, and the last
-- reason.
local dead = redis.call('ZCARD', DEAD)

-- unfinished returns the number of messages that are pending in the group and no dead letters, or
-- not read yet. Those of a group that was deleted are not pending.
local function unfinished()
  local groups, indexed = redis.pcall('XINFO', 'GROUPS', STREAM), redis.call('ZCARD', INDEX)
  if groups.err then return indexed end -- the stream does not exist
  for _, list in ipairs(groups) do
    local found = pairsOf(list)
    if found.name == ARGV[1] then
      local unread = found.lag or math.max(0, redis.call('XLEN', STREAM) - found.pending)
      return math.max(indexed, found.pending - dead) + unread
    end
  end
  return math.max(indexed, redis.call('XLEN', STREAM) - dead)
end

local page = redis.call('HSCAN', LANES, ARGV[2], 'COUNT', MOST)
local leases, parked, oldest, stuck, lanes = 0, 0, -1, {}, {}
for i = 1, #page[2], 2 do
  if string.find(page[2][i], '^%d') then lanes[#lanes + 1] = page[2][i] end
end
load(lanes)
for _, lane in ipairs(lanes) do
  local l, place, entry = loaded[lane], nil, nil
  if l then place, entry = first(l) end
  if place then
    local due = redis.call('ZSCORE', WAITING, lane)
    local failed, _, reason = string.match(redis.call('HGET', NOTES, place) or '0 0 ', '^(%d+) (%d+) (.*)$')
    failed = tonumber(failed)
    if oldest < 0 or timeOf(entry) < oldest then oldest = timeOf(entry) end
    if l.leased and due then leases = leases + 1 end
    if l.parked then parked = parked + 1 end
    if l.parked or failed > 0 then
      local found = redis.call('XRANGE', STREAM, entry, entry)[1]
      stuck[#stuck + 1] = { place, failed, entry, found and found[2] or {}, l.parked and 1 or 0,
        math.max(0, tonumber(due or 0) - now), reason }
    end
  end
end
return { page[1], unfinished(), dead, leases, parked, oldest < 0 and -1 or now - oldest, stuck }
