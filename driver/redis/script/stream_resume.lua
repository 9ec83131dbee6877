-- ARGV: a key, why, who. Answers with 1 if it was parked.
local l = laneOf(ARGV[1])
if not l or not l.parked then return 0 end
l.parked = false
audit('action', 'resume', 'key', ARGV[1], 'reason', ARGV[2], 'by', ARGV[3])
if redis.call('ZSCORE', WAITING, l.name) then
  save(l) -- its lease lasts
else
  free(l, first(l) ~= nil)
end
flush()
return 1
