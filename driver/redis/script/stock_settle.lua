-- KEYS: the item. ARGV: reservation, confirmed or cancelled.
local id, to = ARGV[1], ARGV[2]
forget()
local r = find(id)
if not r and to == 'confirmed' then return { 'unknown' } end
if not r or r.state == to then return { 'done', to } end
if r.state == 'expired' and to == 'cancelled' then return { 'done', r.state } end
if r.state == 'expired' then return { 'gone', r.state } end
if r.state ~= 'held' then return { 'settled', r.state } end
unhold(id, r, to)
if to == 'confirmed' then sold = sold + r.n end
save()
record(id, r)
return { 'done', to }
