-- KEYS: the item. ARGV: units.
local n = tonumber(ARGV[1])
forget()
local refused = room(supply - n)
if refused then return refused end
supply = n
save()
return { 'done' }
