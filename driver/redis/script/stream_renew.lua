-- ARGV: the lease in ms, then the counter of each lease, and then their lanes. Answers with 1 for
-- each renewed lease, and 0 for each lost one.
local count, lease_end, answer = (#ARGV - 1) / 2, text(now + tonumber(ARGV[1])), {}
local lanes = { unpack(ARGV, count + 2) }
load(lanes)
for i, lane in ipairs(lanes) do
  local l = loaded[lane]
  local kept = l and l.leased and l.counter == ARGV[i + 1]
  if kept then move(lane, WAITING, lease_end) end
  answer[i] = kept and 1 or 0
end
flush()
return answer
