-- ARGV: group, and a cursor, which starts and ends as 0. Answers with the next cursor, the numbers
-- of unfinished and dead messages, and for some lanes: how many are leased, how many parked, the
-- age of the oldest message in ms (or -1), and those that are stuck, each with the place, failures,
-- entry and fields of its first message, 1 if it is parked, the time until it is due, and the last
-- reason.
local function unread()
  local groups = redis.pcall('XINFO', 'GROUPS', STREAM)
  if groups.err then return 0 end -- the stream does not exist
  for _, list in ipairs(groups) do
    local found = pairsOf(list)
    if found.name == ARGV[1] and found.lag then return found.lag end
  end
  local rest = redis.call('XLEN', STREAM) - redis.call('ZCARD', INDEX) - redis.call('ZCARD', DEAD)
  return math.max(0, rest)
end

local page = redis.call('HSCAN', LANES, ARGV[2], 'COUNT', MOST)
local leased, parked, oldest, stuck = 0, 0, -1, {}
for i = 1, #page[2], 2 do
  local lane = page[2][i]
  local l = string.find(lane, '^%d') and load(lane)
  local member = l and pending(lane, 1)[1]
  if member then
    local place, entry = parse(member)
    local due = redis.call('ZSCORE', WAITING, lane)
    local failed, _, reason = string.match(redis.call('HGET', NOTES, place) or '0 0 ', '^(%d+) (%d+) (.*)$')
    failed = tonumber(failed)
    if oldest < 0 or added(entry) < oldest then oldest = added(entry) end
    if l.leased and due then leased = leased + 1 end
    if l.parked then parked = parked + 1 end
    if l.parked or failed > 0 then
      local found = redis.call('XRANGE', STREAM, entry, entry)[1]
      stuck[#stuck + 1] = { place, failed, entry, found and found[2] or {}, l.parked and 1 or 0,
        math.max(0, tonumber(due or 0) - now), reason }
    end
  end
end
return { page[1], redis.call('ZCARD', INDEX) + unread(), redis.call('ZCARD', DEAD), leased, parked, oldest < 0 and -1 or now - oldest, stuck }
