-- KEYS: the stream. ARGV: most entries or 0, then five for each message: its lane, id,
-- key, headers, payload. Lanes are numbers; after a failure, the rest of its lane is
-- not added. Answers with one text for each: '' if it was added, 'held', or the error.
local answers, failed = {}, {}
for i = 2, #ARGV, 5 do
  local lane, why = ARGV[i], ''
  if failed[lane] then
    why = 'held'
  else
    local entry = { 'XADD', KEYS[1] }
    if ARGV[1] ~= '0' then
      entry[3], entry[4], entry[5] = 'MAXLEN', '~', ARGV[1]
    end
    entry[#entry + 1] = '*'
    for n, field in ipairs({ 'id', 'key', 'headers', 'payload' }) do
      if ARGV[i + n] ~= '' or field == 'payload' then
        entry[#entry + 1], entry[#entry + 2] = field, ARGV[i + n]
      end
    end
    local answer = redis.pcall(unpack(entry))
    if type(answer) == 'table' and answer.err then
      failed[lane], why = true, answer.err
    end
  end
  answers[#answers + 1] = why
end
return answers
