-- ARGV: a key, why, who. Answers with 1 if it was parked.
local lane = laneOf(ARGV[1])
local l = lane and load(lane)
if not l or not l.parked then return 0 end
l.parked = false
audit('action', 'resume', 'key', ARGV[1], 'reason', ARGV[2], 'by', ARGV[3])
if redis.call('ZSCORE', WAITING, lane) then
  save(l) -- its lease lasts
else
  free(l, #pending(lane, 1) > 0)
end
flush()
return 1
