-- KEYS: the item. Returns supply, units held by reservations that have not expired,
-- and sold.
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', text(now))) do
  held = held - find(id).n
end
return { 'level', text(supply), text(held), text(sold) }
