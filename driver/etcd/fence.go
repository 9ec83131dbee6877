package etcd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// Fence guards data in the same etcd: one transaction in one request checks a
// token, raises the mark and writes, without a read before. It implements
// driver.Fence.
//
// The mark of a resource is a key whose value begins with the token. The token has a fixed
// number of digits, so that etcd compares tokens by comparing values. etcd has no clock in its
// transactions: the caller's clock decides which tokens are implausible and when a mark was
// raised.
//
// One Enter takes up to 63 writes: etcd allows 128 operations in a transaction by
// default, and both branches contain each write. A key must not be written twice. An
// Enter that breaks these rules is Definite. With driver.Raise.Bypassed the reply
// contains the replaced values. Writing a key that begins with the fence's prefix and
// "interlock." is a Bug.
type Fence struct {
	keyspace
	now func() time.Time
}

var _ driver.Fence = (*Fence)(nil)

// NewFence keeps marks under prefix, in the keys "interlock.fence:" + resource and
// "interlock.rebase:" + resource + … (resources are escaped like names). They are
// not in the line of any lock. It does not block.
func NewFence(client *clientv3.Client, prefix string) *Fence {
	return &Fence{keyspace{client: client, prefix: prefix}, time.Now}
}

// reserved begins, after the prefix, every key that is neither a lock's nor the user's.
const reserved = "interlock."

func (f *Fence) key(resource string) string {
	return f.prefix + "interlock.fence:" + escaper.Replace(resource)
}

// audit returns the key of the record of a rebase that read the mark at rev. The mark's own
// revision is not unique: it is 0 each time that the mark was deleted.
func (f *Fence) audit(resource string, rev int64) string {
	return f.prefix + "interlock.rebase:" + escaper.Replace(resource) + ":" + driver.FormatPadded(rev)
}

// note follows the token in a mark's value.
type note struct {
	Source string    `json:"source"`
	Raised time.Time `json:"raised"`
}

func markValue(t interlock.Token, source string, now time.Time) string {
	b, err := json.Marshal(note{Source: source, Raised: now.UTC()})
	if err != nil {
		panic("etcd: mark: " + err.Error()) // a string and a recent time always marshal
	}
	return driver.FormatPadded(int64(t)) + " " + string(b)
}

func readMark(kv *mvccpb.KeyValue) (driver.Mark, error) {
	head := kv.Value[:min(driver.PaddedLength, len(kv.Value))]
	n, err := driver.ParsePadded(string(head))
	if err != nil || n < 0 {
		return driver.Mark{}, fmt.Errorf("key %q is not a mark: it holds %q", kv.Key, kv.Value)
	}
	var also note
	// informational: a mark without it still guards
	_ = json.Unmarshal(kv.Value[len(head):], &also)
	return driver.Mark{Token: interlock.Token(n), Source: also.Source, Raised: also.Raised}, nil
}

// Enter implements driver.Fence with one request. Repeating it after an Uncertain
// error converges, except with r.Strict: the repetition finds the mark that the
// first Enter raised and is refused.
func (f *Fence) Enter(ctx context.Context, r driver.Raise, writes ...driver.Write) error {
	const op = "enter"
	if err := f.checkRaise(op, r.Resource, r.Token); err != nil {
		return err
	}
	for _, w := range writes {
		if err := f.checkKey(op, r.Resource, w.Key); err != nil {
			return err
		}
	}
	reply, err := f.enter(ctx, op, r, operations(f.key(r.Resource), markValue(r.Token, r.Source, f.now()), writes, r.Bypassed != nil))
	if err != nil {
		return err
	}
	if reply.Succeeded {
		return nil // there was no mark before
	}
	inner := reply.Responses[0].GetResponseTxn()
	if inner.Succeeded {
		reportBypassed(r.Bypassed, inner.Responses)
		return nil
	}
	kvs := inner.Responses[0].GetResponseRange().Kvs
	seen, err := readMark(kvs[0])
	if err != nil {
		return problem(op, r.Resource, interlock.Definite, err)
	}
	return &interlock.StaleTokenError{Resource: r.Resource, Seen: seen.Token, Got: r.Token}
}

// enter creates the mark, or else raises a mark below the bound, or else reads it.
func (f *Fence) enter(ctx context.Context, op string, r driver.Raise, write []clientv3.Op) (*clientv3.TxnResponse, error) {
	key := f.key(r.Resource)
	below := int64(r.Token)
	if !r.Strict {
		below++
	}
	raise := clientv3.OpTxn(
		[]clientv3.Cmp{clientv3.Compare(clientv3.Value(key), "<", driver.FormatPadded(below))},
		write,
		[]clientv3.Op{clientv3.OpGet(key)})
	return f.do(ctx, op, r.Resource, []clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(key), "=", 0)}, write, []clientv3.Op{raise})
}

// operations writes the mark and the data; previous also returns what they replace.
func operations(mark, value string, writes []driver.Write, previous bool) []clientv3.Op {
	var options []clientv3.OpOption
	if previous && len(writes) > 0 {
		options = append(options, clientv3.WithPrevKV())
	}
	ops := []clientv3.Op{clientv3.OpPut(mark, value, options...)}
	for _, w := range writes {
		if w.Delete {
			ops = append(ops, clientv3.OpDelete(w.Key, options...))
			continue
		}
		ops = append(ops, clientv3.OpPut(w.Key, string(w.Value), options...))
	}
	return ops
}

// reportBypassed compares the revisions of the replaced values with that of the mark: a
// guarded write has the mark's revision, or an earlier one.
func reportBypassed(tell func(key string), replies []*etcdserverpb.ResponseOp) {
	if tell == nil || len(replies) < 2 {
		return
	}
	entered := replies[0].GetResponsePut().GetPrevKv().GetModRevision()
	for _, reply := range replies[1:] {
		before := reply.GetResponsePut().GetPrevKv()
		if deleted := reply.GetResponseDeleteRange().GetPrevKvs(); len(deleted) > 0 {
			before = deleted[0]
		}
		if before.GetModRevision() > entered {
			tell(string(before.GetKey()))
		}
	}
}

func (f *Fence) checkRaise(op, resource string, t interlock.Token) error {
	if err := checkName(op, resource); err != nil {
		return err
	}
	if !t.Valid() {
		return problem(op, resource, interlock.Bug, fmt.Errorf("%d is not a token", int64(t)))
	}
	return plausible(op, resource, t, f.now())
}

// checkKey rejects writes of the fence's own keys: marks, records, the base of tokens.
func (f *Fence) checkKey(op, resource, key string) error {
	if key != "" && !strings.HasPrefix(key, f.prefix+reserved) {
		return nil
	}
	return problem(op, resource, interlock.Bug, fmt.Errorf("the key %q cannot be written: it is empty, or begins with %s", key, f.prefix+reserved))
}

// plausible rejects a token that no counter can have reached.
func plausible(op, resource string, t interlock.Token, now time.Time) error {
	if t.Counter() <= interlock.CounterAt(now.Add(interlock.MaxAhead)) {
		return nil
	}
	return problem(op, resource, interlock.Definite,
		fmt.Errorf("%w: %d is more than %v ahead of this machine's clock",
			interlock.ErrImplausibleToken, int64(t), interlock.MaxAhead))
}

// Mark implements driver.Fence. Raised is by the clock of the process that raised it.
func (f *Fence) Mark(ctx context.Context, resource string) (driver.Mark, error) {
	r, err := f.read(ctx, "show mark", resource)
	return r.mark, err
}

// reading is a mark as it was read.
type reading struct {
	mark    driver.Mark
	written int64 // the revision of the mark, 0 if there is none
	read    int64 // the revision of the store
}

func (f *Fence) read(ctx context.Context, op, resource string) (r reading, err error) {
	if err := checkName(op, resource); err != nil {
		return r, err
	}
	reply, err := f.get(ctx, op, resource, f.key(resource))
	if err != nil {
		return r, err
	}
	r.read = reply.Header.Revision
	if len(reply.Kvs) == 0 {
		return r, nil
	}
	r.written = reply.Kvs[0].ModRevision
	if r.mark, err = readMark(reply.Kvs[0]); err != nil {
		err = problem(op, resource, interlock.Definite, err)
	}
	return r, err
}

// Resources lists at most limit resources that have a mark and whose names begin with
// prefix, by one request that reads only these.
func (f *Fence) Resources(ctx context.Context, prefix string, limit int) ([]string, error) {
	reply, err := f.get(ctx, "list marks", prefix, f.key(prefix), clientv3.WithPrefix(), clientv3.WithKeysOnly(), clientv3.WithLimit(int64(limit)))
	if err != nil {
		return nil, err
	}
	list := make([]string, len(reply.Kvs))
	for i, kv := range reply.Kvs {
		list[i] = unescaper.Replace(strings.TrimPrefix(string(kv.Key), f.key("")))
	}
	return list, nil
}

// rebaseAttempts bounds how often Rebase reads again because the mark changed
// between its read and its transaction, which then did nothing.
const rebaseAttempts = 8

// Rebase implements driver.Fence. The record is a separate key, never overwritten
// and never removed. It takes two requests; if the mark keeps changing the error is
// Retryable.
func (f *Fence) Rebase(ctx context.Context, resource string, to interlock.Token, reason, by string) (driver.Mark, error) {
	const op = "rebase"
	if to != 0 && !to.Valid() {
		return driver.Mark{}, problem(op, resource, interlock.Bug, fmt.Errorf("%d is not a token", int64(to)))
	}
	if err := plausible(op, resource, to, f.now()); err != nil {
		return driver.Mark{}, err
	}
	for range rebaseAttempts {
		r, err := f.read(ctx, op, resource)
		if err != nil {
			return r.mark, err
		}
		done, err := f.rebaseOnce(ctx, resource, r, to, reason, by)
		if done || err != nil {
			return r.mark, err
		}
	}
	return driver.Mark{}, problem(op, resource, interlock.Retryable, errors.New("other clients kept changing the mark"))
}

// rebasing is the record of one rebase.
type rebasing struct {
	From   interlock.Token `json:"from"`
	To     interlock.Token `json:"to"`
	Reason string          `json:"reason"`
	By     string          `json:"by"`
	At     time.Time       `json:"at"` // by the caller's clock
}

// rebaseOnce does nothing if the mark has changed since the read, or if the key of its record
// exists. In that case another rebase read the same store, and the mark was deleted since.
func (f *Fence) rebaseOnce(ctx context.Context, resource string, r reading, to interlock.Token, reason, by string) (bool, error) {
	now := f.now().UTC()
	entry, err := json.Marshal(rebasing{From: r.mark.Token, To: to, Reason: reason, By: by, At: now})
	if err != nil {
		return false, problem("rebase", resource, interlock.Bug, err)
	}
	key, record := f.key(resource), f.audit(resource, r.read)
	reply, err := f.do(ctx, "rebase", resource,
		[]clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(key), "=", r.written), clientv3.Compare(clientv3.CreateRevision(record), "=", 0)},
		[]clientv3.Op{clientv3.OpPut(key, markValue(to, driver.RebaseSource(by, reason), now)), clientv3.OpPut(record, string(entry))}, nil)
	if err != nil {
		return false, err
	}
	return reply.Succeeded, nil
}
