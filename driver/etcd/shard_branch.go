package etcd

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"

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
	if b.over {
		return nil, problem(op, name, interlock.Bug, errBranchOver)
	}
	if err := checkName(op, name); err != nil {
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
