-- ARGV: the lease in ms, then each lane and the counter of its lease. Answers with 1 for each
-- renewed lease, and 0 for each lost one.
local answer = {}
for i = 2, #ARGV, 2 do
  local l = load(ARGV[i])
  local kept = l and l.leased and l.counter == ARGV[i + 1]
  if kept then move(l.name, WAITING, now + tonumber(ARGV[1])) end
  answer[#answer + 1] = kept and 1 or 0
end
flush()
return answer
