package etcd

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
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
	if d.isClosed() {
		return driver.LockState{}, errClosed("show", name)
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
	if d.isClosed() {
		return nil, false, errClosed("list locks", prefix)
	}
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
		if errors.Is(err, rpctypes.ErrCompacted) { // since the first page
			return nil, problem("list locks", "", interlock.Retryable, errors.Unwrap(err))
		}
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

const (
	// maxBreaks is how many records of forced releases a namespace keeps.
	maxBreaks = 1000
	// trim is how many of the oldest one Break removes at most.
	trim = 8
)

var _ driver.Breaker = (*Driver)(nil)

// breaking is the record of one forced release. The name is in its key.
type breaking struct {
	Owner  string          `json:"owner"`
	Reason string          `json:"reason"`
	By     string          `json:"by"`
	Token  interlock.Token `json:"token"`
	At     time.Time       `json:"at"` // by the caller's clock
}

// Break implements driver.Breaker with two requests: one reads the first contender
// of the line, one deletes its key and writes the record, if the key is unchanged.
// It also breaks the claims of other clients, under the owner "foreign lease …"
// that Inspector shows. A key without a lease is user data, and is refused.
//
// A namespace keeps the records of its last thousand forced releases, or a few
// more, in keys outside every lock. At is by the caller's clock: etcd has none.
// Reason and By must be UTF-8.
func (d *Driver) Break(ctx context.Context, b driver.Break) (driver.BreakRecord, bool, error) {
	const op = "break"
	if err := d.breakable(op, b); err != nil {
		return driver.BreakRecord{}, false, err
	}
	holder, old, err := d.first(ctx, op, b.Name)
	if err != nil || holder == nil {
		return driver.BreakRecord{}, false, err
	}
	who := contenderOf(holder)
	switch {
	case who.Owner != b.Owner:
		return driver.BreakRecord{}, false, nil
	case holder.Lease == 0:
		return driver.BreakRecord{}, false, problem(op, b.Name, interlock.Definite,
			fmt.Errorf("the key %q in its queue has no lease, so it is not a lock: delete it by hand", holder.Key))
	}
	record := driver.BreakRecord{Break: b, Token: who.Token, At: d.options.Now().UTC().Round(0)}
	ok, err := d.take(ctx, op, holder, old, record)
	if err != nil || !ok {
		return driver.BreakRecord{}, false, err
	}
	return record, true, nil
}

func (d *Driver) breakable(op string, b driver.Break) error {
	if d.isClosed() {
		return errClosed(op, b.Name)
	}
	if err := checkName(op, b.Name); err != nil {
		return err
	}
	if err := b.ValidateUTF8(); err != nil {
		return problem(op, b.Name, interlock.Bug, err)
	}
	return nil
}

// first reads the holder of a line, nil if there is none, and the oldest records beyond
// maxBreaks. It changes nothing.
func (d *Driver) first(ctx context.Context, op, name string) (holder *mvccpb.KeyValue, old []string, err error) {
	reply, err := d.keys.do(ctx, op, name, nil, []clientv3.Op{
		clientv3.OpGet(d.layout.line(name), clientv3.WithFirstCreate()...),
		clientv3.OpGet(d.layout.breaks(), clientv3.WithPrefix(), clientv3.WithKeysOnly(), clientv3.WithLimit(trim),
			clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend)),
	}, nil)
	if err != nil {
		return nil, nil, err
	}
	records := reply.Responses[1].GetResponseRange()
	for i, kv := range records.Kvs {
		if records.Count-int64(i) >= maxBreaks {
			old = append(old, string(kv.Key))
		}
	}
	if kvs := reply.Responses[0].GetResponseRange().Kvs; len(kvs) > 0 {
		holder = kvs[0]
	}
	return holder, old, nil
}

// take deletes the holder's key and writes the record. It is false if the key is gone. A
// contender that was first and still exists is first: all others came later.
func (d *Driver) take(ctx context.Context, op string, holder *mvccpb.KeyValue, old []string, b driver.BreakRecord) (bool, error) {
	value, err := json.Marshal(breaking{Owner: b.Owner, Reason: b.Reason, By: b.By, Token: b.Token, At: b.At})
	if err != nil {
		return false, problem(op, b.Name, interlock.Bug, err)
	}
	key := string(holder.Key)
	ops := []clientv3.Op{
		clientv3.OpDelete(key),
		clientv3.OpPut(d.layout.broken(b.Name, holder.CreateRevision), string(value)),
	}
	for _, key := range old {
		ops = append(ops, clientv3.OpDelete(key))
	}
	same := []clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(key), "=", holder.CreateRevision)}
	reply, err := d.keys.do(ctx, op, b.Name, same, ops, nil)
	if err != nil {
		return false, err
	}
	return reply.Succeeded, nil
}

// Breaks implements driver.Breaker with one request.
func (d *Driver) Breaks(ctx context.Context, name string, limit int) ([]driver.BreakRecord, error) {
	const op = "show forced releases"
	if d.isClosed() {
		return nil, errClosed(op, name)
	}
	from := d.layout.breaks()
	if name != "" {
		from = d.layout.breaksOf(name)
	}
	reply, err := d.keys.get(ctx, op, name, from, clientv3.WithPrefix(),
		clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortDescend))
	if err != nil {
		return nil, err
	}
	var all []driver.BreakRecord
	for _, kv := range reply.Kvs {
		record, err := d.layout.readBroken(kv)
		switch {
		case len(all) >= limit:
			return all, nil
		case err != nil:
			return nil, problem(op, name, interlock.Definite, err)
		case name == "" || record.Name == name: // keys of "a:b" begin like those of "a"
			all = append(all, record)
		}
	}
	return all, nil
}

func (d *Driver) isClosed() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.closed
}

// breaks returns the prefix of all records of forced releases, breaksOf that of one name's. Names
// are escaped whatever Options say, so that no key is in a line.
func (l layout) breaks() string { return l.prefix + reserved + "break:" }

func (l layout) breaksOf(name string) string { return l.breaks() + escaper.Replace(name) + ":" }

func (l layout) broken(name string, created int64) string {
	return l.breaksOf(name) + driver.FormatPadded(created)
}

func (l layout) readBroken(kv *mvccpb.KeyValue) (driver.BreakRecord, error) {
	rest := strings.TrimPrefix(string(kv.Key), l.breaks())
	at := max(0, len(rest)-driver.PaddedLength-1)
	name, created := unescaper.Replace(rest[:at]), strings.TrimPrefix(rest[at:], ":")
	if n, err := driver.ParsePadded(created); err != nil || name == "" || l.broken(name, n) != string(kv.Key) {
		return driver.BreakRecord{}, fmt.Errorf("key %q: %w", kv.Key, errNoRecord)
	}
	var b breaking
	if err := json.Unmarshal(kv.Value, &b); err != nil {
		return driver.BreakRecord{}, fmt.Errorf("key %q: %w (%w)", kv.Key, errNoRecord, err)
	}
	return driver.BreakRecord{
		Break: driver.Break{Name: name, Owner: b.Owner, Reason: b.Reason, By: b.By},
		Token: b.Token,
		At:    b.At,
	}, nil
}

var errNoRecord = errors.New("it is not the record of a forced release")
