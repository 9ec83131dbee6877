package etcd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

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
