-- KEYS: the locks. ARGV: channel, then the owner for each name. Ends the owner's grant or
-- place on the name, and grants a lock that is then free to the first waiter. Returns for
-- each name 1 if it was held, or an error; for one name only that. release_free.lua and
-- release_push.lua come before it.
if names == 1 then values, firsts, answers = { value }, { first }, {} end

local function release(i)
  local owner, holder, k = ARGV[i + 1], holder_in(values[i]), keys_of(i)
  if holder ~= owner then leave(k, ARGV[1] .. ' ' .. owner) end
  local waiter, place
  if holder == owner or not holder then waiter, place = pop(k, firsts[i]) end
  if waiter then
    push(k, waiter, place)
  else
    if holder == owner then redis.call('DEL', k.lock) end
    unlist(k)
  end
  tell_watchers(k)
  return holder == owner and 1 or 0
end

for i = 1, names do
  if not answers[i] then
    local ok, answer = pcall(release, i)
    answers[i] = ok and answer or failed(answer)
  end
end
return names == 1 and answers[1] or answers
