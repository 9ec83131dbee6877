package etcd

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// page is how many keys one request of Locks reads.
const page = 1000

// Lock implements driver.Inspector: one read of the line and one of each lease in
// it. A contender's Since is its arrival by its own clock; for a holder that had to
// wait that is before its grant.
func (d *Driver) Lock(ctx context.Context, name string) (driver.LockState, error) {
	if err := checkName("show", name); err != nil {
		return driver.LockState{}, err
	}
	reply, err := d.keys.get(ctx, "show", name, d.layout.line(name), clientv3.WithPrefix())
	if err != nil {
		return driver.LockState{}, err
	}
	return d.describe(ctx, name, reply.Kvs, map[int64]time.Duration{}), nil
}

// Locks implements driver.Inspector. It reads every key under the prefix, a
// thousand at a time, and the leases of the locks that it returns. Names whose keys
// have no lease are user data and not listed, though [Driver.Lock] shows them,
// because they would block a lock of that name.
func (d *Driver) Locks(ctx context.Context, prefix string, limit int) ([]driver.LockState, bool, error) {
	found, err := d.scan(ctx, d.layout.prefix+d.layout.escape(prefix))
	if err != nil {
		return nil, false, err
	}
	names := slices.Sorted(maps.Keys(found))
	shown := min(len(names), max(limit, 0))
	leases := map[int64]time.Duration{}
	var locks []driver.LockState
	for _, name := range names[:shown] {
		locks = append(locks, d.describe(ctx, name, found[name], leases))
	}
	return locks, len(names) > shown, nil
}

// scan groups the contenders under a prefix of keys by the name of their lock.
func (d *Driver) scan(ctx context.Context, from string) (map[string][]*mvccpb.KeyValue, error) {
	found := map[string][]*mvccpb.KeyValue{}
	next, end, rev := from, clientv3.GetPrefixRangeEnd(from), int64(0)
	if from == "" {
		next, end = "\x00", "\x00"
	}
	for {
		reply, err := d.keys.get(ctx, "list locks", "", next, clientv3.WithRange(end), clientv3.WithLimit(page), clientv3.WithRev(rev))
		if err != nil {
			return nil, err
		}
		d.group(found, reply.Kvs)
		if !reply.More {
			break
		}
		next, rev = string(reply.Kvs[len(reply.Kvs)-1].Key)+"\x00", reply.Header.Revision
	}
	maps.DeleteFunc(found, func(_ string, kvs []*mvccpb.KeyValue) bool {
		return !slices.ContainsFunc(kvs, func(kv *mvccpb.KeyValue) bool { return kv.Lease != 0 })
	})
	return found, nil
}

func (d *Driver) group(found map[string][]*mvccpb.KeyValue, kvs []*mvccpb.KeyValue) {
	for _, kv := range kvs {
		if name, ok := d.layout.name(string(kv.Key)); ok {
			found[name] = append(found[name], kv)
		}
	}
}

// describe returns a lock's state from the keys in its line. leases caches the
// leases that were read already.
func (d *Driver) describe(ctx context.Context, name string, kvs []*mvccpb.KeyValue, leases map[int64]time.Duration) driver.LockState {
	slices.SortFunc(kvs, func(a, b *mvccpb.KeyValue) int { return cmp.Compare(a.CreateRevision, b.CreateRevision) })
	state := driver.LockState{Name: name}
	for i, kv := range kvs {
		c := contenderOf(kv)
		c.Expires = d.expires(ctx, kv.Lease, leases)
		if i > 0 {
			c.Token = 0
			state.Waiters = append(state.Waiters, c)
			continue
		}
		state.Holder = &c
	}
	return state
}

func contenderOf(kv *mvccpb.KeyValue) driver.Contender {
	r, ok := readRecord(kv.Value)
	if !ok {
		return driver.Contender{Owner: foreignOwner(kv), Foreign: true}
	}
	c := driver.Contender{Owner: r.Owner, Since: r.Asked}
	// a counter out of range shows as no token
	c.Token, _ = interlock.NewToken(r.Base+kv.CreateRevision, 0)
	return c
}

// expires returns how long a lease has left; 0 if unknown.
func (d *Driver) expires(ctx context.Context, lease int64, known map[int64]time.Duration) time.Duration {
	if lease == 0 {
		return 0
	}
	if left, ok := known[lease]; ok {
		return left
	}
	rctx, cancel := d.bounded(ctx)
	defer cancel()
	reply, err := d.client.TimeToLive(rctx, clientv3.LeaseID(lease))
	if err != nil {
		return 0 // the rest of the answer is valid without it
	}
	known[lease] = max(0, time.Duration(reply.TTL)*time.Second)
	return known[lease]
}
