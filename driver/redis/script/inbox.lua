-- KEYS: the message, then the effect's. ARGV: owner, hash, keep_ms, then the effect's. The
-- message is a hash: owner, hash, result, and failed (why) if its effect failed. body.lua
-- comes before. The effect precedes the record, because a script that has not written can
-- be killed; no other command can come between them.
local function record(...)
  redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'hash', ARGV[2], ...)
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
end

local seen = redis.call('HMGET', KEYS[1], 'owner', 'hash', 'result', 'failed')
if seen[2] and seen[2] ~= ARGV[2] then return { 'other', '' } end
if seen[4] then return { 'failed', seen[4] } end
if seen[2] then return { seen[1] == ARGV[1] and 'now' or 'done', seen[3] } end

local value
local ok, failure = pcall(function()
  value = body(rest(KEYS, 2), rest(ARGV, 4))
  if type(value) ~= 'table' or not value.refused then value = text(value) end
end)
if not ok then
  failure = type(failure) == 'table' and failure.err or tostring(failure)
  record('failed', failure)
  return { 'failed', failure }
end
if type(value) == 'table' then return { 'refused', value.refused } end
record('result', value)
return { 'now', value }
