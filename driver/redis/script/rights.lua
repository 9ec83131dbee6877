-- ARGV: for each command the number of its words, then the words. Runs none of
-- them. Returns for each 1 or 0: whether the user may run it on these keys and
-- channels; nothing if the server cannot tell.
local replies, i = {}, 1
while redis.acl_check_cmd and i <= #ARGV do
  local n = tonumber(ARGV[i])
  replies[#replies + 1] = redis.acl_check_cmd(unpack(ARGV, i + 1, i + n)) and 1 or 0
  i = i + n + 1
end
return replies
