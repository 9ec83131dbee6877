-- ARGV: the place after which to start, and how many. Answers with the dead letters in order,
-- each with its place, failures, entry, fields, time and reason.
local answer = {}
for _, member in ipairs(redis.call('ZRANGEBYLEX', DEAD, '[' .. pad(tonumber(ARGV[1])) .. ';', '+', 'LIMIT', 0, ARGV[2])) do
  local place, entry = parseDead(member)
  local found = redis.call('XRANGE', STREAM, entry, entry)[1]
  local failed, died, reason = string.match(redis.call('HGET', NOTES, place) or '0 0 ', '^(%d+) (%d+) (.*)$')
  answer[#answer + 1] = { place, tonumber(failed), entry, found and found[2] or {}, tonumber(died), reason }
end
return answer
