package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// Bounds of a transaction by etcd's default limits; see Shard.
const (
	maxShardOperations = 128
	maxShardBytes      = 512 << 10
)

var errBranchOver = errors.New("the branch was prepared, committed or abandoned before")

// ShardBranch is a branch of a shard while the user works in it. Its calls see the
// shard as of the first of them, with the branch's own changes. No one else sees
// those before the commit. A change first reads its item, if the branch has not read
// it: one request for each item.
//
// One goroutine at a time may use it. Calls after Prepare, CommitOne or Abandon are a
// Bug.
type ShardBranch struct {
	shard    *Shard
	xid      driver.XID
	items    map[string]*shardItem // the items read, by item
	revision int64                 // of the reads; 0 before the first
	bytes    int                   // of names and values
	over     bool
}

// shardItem is an item that a branch has read, and perhaps changed.
type shardItem struct {
	name    string // as the user passes it
	version int64  // as it was read, 0 if it did not exist
	text    []byte // as the branch sees it, nil if it does not exist
	changed bool
	amount  int64 // added to it
}

// Begin opens a branch. It sends nothing.
func (s *Shard) Begin(ctx context.Context, x driver.XID) (*ShardBranch, driver.Preparing, error) {
	const op = "begin branch"
	if err := x.Check(); err != nil {
		return nil, nil, problem(op, branchName(x), interlock.Bug, err)
	}
	if ctx.Err() != nil {
		return nil, nil, unsent(ctx, op, branchName(x))
	}
	b := &ShardBranch{shard: s, xid: x, items: map[string]*shardItem{}}
	return b, preparing{b}, nil
}

// Balance returns the balance of an account in the branch; a new account has 0.
func (b *ShardBranch) Balance(ctx context.Context, account string) (int64, error) {
	const op = "read balance"
	it, err := b.touch(ctx, op, account, balanceItem(account))
	if err != nil {
		return 0, err
	}
	n, err := readAmount(it.text)
	if err != nil {
		err = problem(op, account, interlock.Definite, err)
	}
	return n, err
}

// Add adds an amount to an account, or subtracts it if it is negative. A result below
// zero, or too large for an int64, is refused with an *OverdrawnError.
func (b *ShardBranch) Add(ctx context.Context, account string, amount int64) error {
	const op = "add to balance"
	n, err := b.Balance(ctx, account)
	if err != nil {
		return err
	}
	if amount < -n || amount > math.MaxInt64-n {
		return problem(op, account, interlock.Definite, &OverdrawnError{Account: account, Balance: n, Amount: amount})
	}
	it := b.items[balanceItem(account)]
	if err := b.change(op, it, strconv.AppendInt(nil, n+amount, 10)); err != nil {
		return err
	}
	it.amount += amount
	return nil
}

// Get returns a value in the branch, nil if there is none.
func (b *ShardBranch) Get(ctx context.Context, name string) ([]byte, error) {
	it, err := b.touch(ctx, "read value", name, valueItem(name))
	if err != nil {
		return nil, err
	}
	return slices.Clone(it.text), nil
}

// Put sets a value, of at most driver.MaxValue bytes.
func (b *ShardBranch) Put(ctx context.Context, name string, data []byte) error {
	const op = "put value"
	if len(data) > driver.MaxValue {
		return problem(op, name, interlock.Bug, fmt.Errorf("it has %d bytes, at most %d are allowed", len(data), driver.MaxValue))
	}
	it, err := b.touch(ctx, op, name, valueItem(name))
	if err != nil {
		return err
	}
	return b.change(op, it, append([]byte{}, data...)) // not nil, even if empty
}

// Delete removes a value, which may be missing.
func (b *ShardBranch) Delete(ctx context.Context, name string) error {
	const op = "delete value"
	it, err := b.touch(ctx, op, name, valueItem(name))
	if err != nil {
		return err
	}
	return b.change(op, it, nil)
}

// touch reads an item, unless the branch has read it already.
func (b *ShardBranch) touch(ctx context.Context, op, name, item string) (*shardItem, error) {
	if err := cmp.Or(b.checkOpen(op, name), checkName(op, name)); err != nil {
		return nil, err
	}
	if it := b.items[item]; it != nil {
		return it, nil
	}
	it := &shardItem{name: name}
	if err := b.room(op, name, 2, 2*len(item)); err != nil {
		return nil, err
	}
	reply, err := b.shard.do(ctx, op, name, nil, []clientv3.Op{clientv3.OpGet(b.shard.postedKey(item), clientv3.WithRev(b.revision))}, nil)
	if errors.Is(err, rpctypes.ErrCompacted) {
		return nil, problem(op, name, interlock.Retryable, fmt.Errorf("the branch is older than etcd's compacted history, begin again: %w", rpctypes.ErrCompacted))
	}
	if err != nil {
		return nil, err
	}
	if b.revision == 0 {
		b.revision = reply.Header.Revision
	}
	if kvs := reply.Responses[0].GetResponseRange().Kvs; len(kvs) > 0 {
		it.version, it.text = kvs[0].ModRevision, append([]byte{}, kvs[0].Value...)
	}
	b.items[item] = it
	b.bytes += 2 * len(item)
	return it, nil
}

// change records the new content of an item that was read.
func (b *ShardBranch) change(op string, it *shardItem, text []byte) error {
	more, bytes := 1, 2*len(it.name)+len(text)
	if it.changed {
		more, bytes = 0, len(text)-len(it.text)
	}
	if err := b.room(op, it.name, more, bytes); err != nil {
		return err
	}
	it.text, it.changed = text, true
	b.bytes += bytes
	return nil
}

// room rejects what exceeds the size of an etcd transaction.
func (b *ShardBranch) room(op, name string, more, bytes int) error {
	operations := 3
	for _, it := range b.items {
		operations += 2
		if it.changed {
			operations++
		}
	}
	if operations+more <= maxShardOperations && b.bytes+bytes <= maxShardBytes {
		return nil
	}
	return problem(op, name, interlock.Bug, fmt.Errorf("the branch is too large for a transaction of etcd: %d operations of %d, %d bytes of %d",
		operations+more, maxShardOperations, b.bytes+bytes, maxShardBytes))
}

// inOrder returns the items by name, so that a branch has one text.
func (b *ShardBranch) inOrder() []string { return slices.Sorted(maps.Keys(b.items)) }

// preparing ends a branch for its coordinator.
type preparing struct{ b *ShardBranch }

// Prepare reserves what the branch has changed and read, by one request. A branch
// without any access is read-only and sends nothing.
func (p preparing) Prepare(ctx context.Context) (driver.Vote, error) {
	b := p.b
	if err := b.finish("prepare branch"); err != nil {
		return driver.VoteNo, err
	}
	if len(b.items) == 0 {
		return driver.VoteReadOnly, nil
	}
	d := b.plan()
	puts := []clientv3.Op{clientv3.OpPut(b.shard.doubtKey(b.xid), jsonText(d))}
	for _, w := range d.Writes {
		puts = append(puts, clientv3.OpPut(b.shard.heldKey(string(w.Item)), jsonText(hold{b.xid.Transaction, b.xid.Branch, w.Amount, d.Since})))
	}
	for _, item := range d.Reads {
		puts = append(puts, clientv3.OpPut(b.shard.readKey(string(item), b.xid), jsonText(hold{b.xid.Transaction, b.xid.Branch, 0, d.Since})))
	}
	if err := b.try(ctx, "prepare branch", puts); err != nil {
		return driver.VoteNo, err
	}
	return driver.VoteYes, nil
}

// CommitOne posts the branch's changes at once, by one request; a branch without
// changes has seen one instant of the shard, and sends nothing. After an Uncertain
// answer Shard.Commit finds out whether it was done, and Shard.Rollback prevents it
// from being done later.
func (p preparing) CommitOne(ctx context.Context) error {
	b := p.b
	if err := b.finish("commit branch"); err != nil {
		return err
	}
	d := b.plan()
	if len(d.Writes) == 0 {
		return nil
	}
	return b.try(ctx, "commit branch", append(b.shard.post(d), b.shard.mark(b.xid, true)))
}

// Abandon undoes nothing: before Prepare nothing of a branch is in etcd.
func (p preparing) Abandon(context.Context) error {
	p.b.over = true
	return nil
}

// finish ends the user's part of a branch, once.
func (b *ShardBranch) finish(op string) error {
	err := b.checkOpen(op, branchName(b.xid))
	b.over = true
	return err
}

func (b *ShardBranch) checkOpen(op, name string) error {
	if b.over {
		return problem(op, name, interlock.Bug, errBranchOver)
	}
	return nil
}

// plan returns what the branch does once it is committed.
func (b *ShardBranch) plan() doubt {
	d := doubt{Since: b.shard.now().UnixMicro()}
	for _, item := range b.inOrder() {
		it := b.items[item]
		if !it.changed {
			d.Reads = append(d.Reads, []byte(item))
			continue
		}
		d.Writes = append(d.Writes, doubtWrite{Item: []byte(item), Text: it.text, Amount: it.amount, Gone: it.text == nil})
	}
	return d
}

// post returns the operations that publish a branch's changes.
func (s *Shard) post(d doubt) (ops []clientv3.Op) {
	for _, w := range d.Writes {
		if w.Gone {
			ops = append(ops, clientv3.OpDelete(s.postedKey(string(w.Item))))
		} else {
			ops = append(ops, clientv3.OpPut(s.postedKey(string(w.Item)), string(w.Text)))
		}
	}
	return ops
}

// mark returns the operation that leaves a branch's marker.
func (s *Shard) mark(x driver.XID, committed bool) clientv3.Op {
	return clientv3.OpPut(s.endedKey(x), jsonText(ended{committed, s.now().UnixMicro()}))
}

// try executes ops if all that the branch has read is unchanged and not reserved by
// others, and its name is new.
func (b *ShardBranch) try(ctx context.Context, op string, ops []clientv3.Op) error {
	s, x := b.shard, b.xid
	when := []clientv3.Cmp{
		clientv3.Compare(clientv3.CreateRevision(s.doubtKey(x)), "=", 0),
		clientv3.Compare(clientv3.CreateRevision(s.endedKey(x)), "=", 0),
		clientv3.Compare(clientv3.ModRevision(s.lowKey()), "<", b.revision+1),
	}
	otherwise := []clientv3.Op{clientv3.OpGet(s.doubtKey(x)), clientv3.OpGet(s.endedKey(x)), clientv3.OpGet(s.lowKey())}
	for _, item := range b.inOrder() {
		when = append(when,
			clientv3.Compare(clientv3.ModRevision(s.postedKey(item)), "=", b.items[item].version),
			clientv3.Compare(clientv3.CreateRevision(s.heldKey(item)), "=", 0))
		otherwise = append(otherwise, clientv3.OpGet(s.heldKey(item)), clientv3.OpGet(s.postedKey(item), clientv3.WithKeysOnly()))
		if b.items[item].changed {
			when = append(when, clientv3.Compare(clientv3.CreateRevision(s.readers(item)), "=", 0).WithPrefix())
			otherwise = append(otherwise, clientv3.OpGet(s.readers(item), clientv3.WithPrefix(), clientv3.WithLimit(1)))
		}
	}
	reply, err := s.do(ctx, op, branchName(x), when, ops, otherwise)
	if err != nil || reply.Succeeded {
		return err
	}
	return b.refusal(op, reply)
}

// refusal returns why a branch cannot be prepared or committed. Nothing is left of it.
// The error is Retryable if another branch may succeed, and Definite otherwise.
func (b *ShardBranch) refusal(op string, reply *clientv3.TxnResponse) error {
	name := branchName(b.xid)
	next := func() *mvccpb.KeyValue {
		kvs := reply.Responses[0].GetResponseRange().Kvs
		reply.Responses = reply.Responses[1:]
		if len(kvs) == 0 {
			return nil
		}
		return kvs[0]
	}
	if err := duplicateBranch(next(), next()); err != nil {
		return problem(op, name, interlock.Definite, err)
	}
	if low := next(); low != nil && low.ModRevision > b.revision {
		return problem(op, name, interlock.Retryable, &ChangedError{Name: "the markers of branches, which were forgotten", Read: b.revision, Found: low.ModRevision})
	}
	for _, item := range b.inOrder() {
		it := b.items[item]
		held, posted := next(), next()
		if it.changed && held == nil {
			held = next()
		} else if it.changed {
			next()
		}
		if err := conflict(it, held, posted); err != nil {
			kind := interlock.Definite
			if interlock.Kind(err) == interlock.Retryable {
				kind = interlock.Retryable
			}
			return problem(op, name, kind, err)
		}
	}
	return problem(op, name, interlock.Retryable, errors.New("a conflicting branch has just ended"))
}

// duplicateBranch returns the error for a name whose branch is prepared, or has ended.
func duplicateBranch(doubted, marker *mvccpb.KeyValue) error {
	if doubted != nil {
		return errors.New("a branch of this name is prepared")
	}
	if marker == nil {
		return nil
	}
	e, err := readEnded(marker)
	if err != nil {
		return err
	}
	return fmt.Errorf("a branch of this name has ended before: %s at %v", outcomeName(e.Committed), recorded(e.At))
}

// conflict returns what blocks an item: a branch that holds it, or another version.
func conflict(it *shardItem, held, posted *mvccpb.KeyValue) error {
	if held != nil {
		h, err := readHold(held)
		if err != nil {
			return err
		}
		return &interlock.HeldError{Name: it.name, Owner: branchName(h.xid()), Since: h.since()}
	}
	var found int64
	if posted != nil {
		found = posted.ModRevision
	}
	if found != it.version {
		return &ChangedError{Name: it.name, Read: it.version, Found: found}
	}
	return nil
}
