package etcd

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// Shard is a part of the data of distributed transactions that lives in etcd: balances
// of accounts, which are never below zero, and small values with versions. It prepares,
// commits and rolls back branches, each by one transaction of etcd; package txn/twopc
// drives them. It implements driver.Preparer.
//
// A branch reads the shard as it was at one revision. Preparing it finds that all it
// has read is still so and nobody else's, reserves what it changes against everybody
// and what it only read against those who change it, and changes nothing that readers
// see. Nobody waits for a reservation: who comes upon one votes no, with an
// *interlock.HeldError that names its branch, and who has read what was changed since
// with a *ChangedError. Both are Retryable: another run of the transaction may come
// through. Committing posts what was reserved, rolling back frees it, from any process.
// Because what was only read stays reserved until the decision too, transactions over
// several shards are serializable; the price is that a branch that read and changed
// nothing votes yes, not read-only. Readers outside of branches see what was posted,
// and beside it what is reserved: over several shards they can see half of a
// transaction.
//
// A branch that ended leaves a marker that says how. The marker makes Commit and
// Rollback repeatable, and a Prepare that comes after its Rollback vote no; Forget
// removes old ones. Nothing here expires by itself: a branch in doubt keeps what it
// has reserved until a process that knows the decision reports it.
//
// etcd has no clock in its transactions. When something was prepared or ended is by the
// clock of the process that did it, and decides nothing but what Forget removes.
//
// By etcd's default of 128 operations in a transaction a branch has room for 41 items
// that it changes, or 62 that it only reads (3 for each of the first and 2 for each of
// the second make 125), and for half a MiB of names and values. More is a Bug, which
// the call that goes beyond it returns. Preparing is one request, and finishing two, of
// which one writes.
type Shard struct {
	client *clientv3.Client
	prefix string
	now    func() time.Time
}

var _ driver.Preparer[*ShardBranch] = (*Shard)(nil)

// NewShard keeps a shard under prefix, in keys that go on with "interlock.shard:". No
// lock's contenders begin so. Shards of different prefixes know nothing of each other.
// It does not block, and the client must outlive its use.
func NewShard(client *clientv3.Client, prefix string) *Shard {
	return &Shard{client: client, prefix: prefix + reserved + "shard:", now: time.Now}
}

// The keys. Items are "balance/" or "value/" and a name, escaped like that of a lock:
// they have no further slash. A branch is named by its own name, which has none, and
// then its transaction.

func (s *Shard) postedKey(item string) string { return s.prefix + "posted/" + item }

// heldKey is where the branch stands that changes an item.
func (s *Shard) heldKey(item string) string { return s.prefix + "held/" + item }

// readKey is where one of the branches stands that rely on an item.
func (s *Shard) readKey(item string, x driver.XID) string { return s.readers(item) + branchName(x) }

func (s *Shard) readers(item string) string { return s.prefix + "read/" + item + "/" }

// doubtKey is there from Prepare to Commit or Rollback, and endedKey from then on.
func (s *Shard) doubtKey(x driver.XID) string { return s.prefix + "doubt/" + branchName(x) }

func (s *Shard) endedKey(x driver.XID) string { return s.prefix + "ended/" + branchName(x) }

// lowKey is written whenever markers are removed.
func (s *Shard) lowKey() string { return s.prefix + "low" }

func branchName(x driver.XID) string { return x.Branch + "/" + x.Transaction }

func balanceItem(account string) string { return "balance/" + escaper.Replace(account) }

func valueItem(name string) string { return "value/" + escaper.Replace(name) }

// ShardBalance is an account as readers outside of branches see it.
type ShardBalance struct {
	Posted  int64 // what committed transactions have left there
	Held    int64 // of Posted, what a branch in doubt takes if it commits
	Pending int64 // beside Posted, what a branch in doubt adds if it commits
	// Branch is the one in doubt, the zero XID if there is none. It holds the account
	// also if it adds and takes nothing in the end.
	Branch  driver.XID
	Since   time.Time // when that was prepared, by the clock of who did it
	Version int64     // the revision that posted it, 0 if nothing ever was
}

// Available is what can be taken for any outcome of the branch in doubt.
func (b ShardBalance) Available() int64 { return b.Posted - b.Held }

// Balance reads an account at one instant; one that nothing was added to has the zero
// balance. It is one request.
func (s *Shard) Balance(ctx context.Context, account string) (b ShardBalance, err error) {
	const op = "read balance"
	text, version, hold, err := s.look(ctx, op, account, balanceItem(account))
	if err != nil {
		return b, err
	}
	if b.Posted, err = readAmount(text); err != nil {
		return b, shardError(op, account, interlock.Definite, err)
	}
	b.Version, b.Branch, b.Since = version, hold.xid(), hold.since()
	b.Held, b.Pending = max(0, -hold.Amount), max(0, hold.Amount)
	return b, nil
}

// ShardValue is a value as readers outside of branches see it.
type ShardValue struct {
	Data    []byte
	Version int64      // the revision that posted it, 0 if there is none
	Branch  driver.XID // one in doubt that changes it, the zero XID if there is none
	Since   time.Time  // when that was prepared, by the clock of who did it
}

// Value reads a value at one instant; one that is not there is the zero value. It is
// one request.
func (s *Shard) Value(ctx context.Context, name string) (ShardValue, error) {
	text, version, hold, err := s.look(ctx, "read value", name, valueItem(name))
	return ShardValue{Data: text, Version: version, Branch: hold.xid(), Since: hold.since()}, err
}

// look reads what is posted of an item, and who holds it.
func (s *Shard) look(ctx context.Context, op, name, item string) (text []byte, version int64, h hold, err error) {
	if err = checkName(op, name); err != nil {
		return nil, 0, h, err
	}
	reply, err := s.do(ctx, op, name, nil, []clientv3.Op{clientv3.OpGet(s.postedKey(item)), clientv3.OpGet(s.heldKey(item))}, nil)
	if err != nil {
		return nil, 0, h, err
	}
	if kvs := reply.Responses[0].GetResponseRange().Kvs; len(kvs) > 0 {
		text, version = kvs[0].Value, kvs[0].ModRevision
	}
	if kvs := reply.Responses[1].GetResponseRange().Kvs; len(kvs) > 0 {
		if h, err = readHold(kvs[0]); err != nil {
			err = shardError(op, name, interlock.Definite, err)
		}
	}
	return text, version, h, err
}

// do sends one transaction, within the time of a request.
func (s *Shard) do(ctx context.Context, op, name string, when []clientv3.Cmp, then, otherwise []clientv3.Op) (*clientv3.TxnResponse, error) {
	if ctx.Err() != nil {
		return nil, unsent(ctx, op, name)
	}
	rctx, cancel := context.WithTimeoutCause(ctx, requestTimeout, errSlow)
	defer cancel()
	reply, err := s.client.Txn(rctx).If(when...).Then(then...).Else(otherwise...).Commit()
	if err != nil {
		return nil, failed(rctx, op, name, err)
	}
	return reply, nil
}

func shardError(op, name string, kind interlock.ErrorKind, err error) error {
	return &interlock.Error{Op: op, Driver: driverName, Name: name, Kind: kind, Err: err}
}
