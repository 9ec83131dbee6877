package etcd

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// Shard is the etcd part of the data of distributed transactions: balances of accounts,
// which are never below zero, and small values with versions. It prepares, commits and
// rolls back branches, each in one etcd transaction; package txn/twopc drives them. It
// implements driver.Preparer.
//
// A branch reads the shard at one revision. Prepare checks that all it has read is
// unchanged and reserved by no other branch. It reserves what the branch changes
// against all others, and what it only read against those that change it. Readers see
// no change. No branch waits for a reservation: a branch that meets one votes no, with
// an *interlock.HeldError that names the other branch. A branch whose reads are
// outdated votes no with a *ChangedError. Both are Retryable: another run of the
// transaction may succeed. Commit posts the reserved changes, Rollback frees them, from
// any process.
//
// Reads stay reserved until the decision too, so transactions over several shards are
// serializable. Therefore a branch that read and changed nothing votes yes, not
// read-only. Readers outside of branches see the posted state and the reservations:
// over several shards they can see half of a transaction.
//
// An ended branch leaves a marker with its outcome. The marker makes Commit and
// Rollback repeatable, and a Prepare after its Rollback vote no; Forget removes old
// ones. Nothing here expires: a branch in doubt keeps its reservations until a
// process that knows the decision reports it.
//
// etcd has no clock in its transactions. The times of a Prepare or an end are by the
// clock of the process that did it, and affect only what Forget removes.
//
// By etcd's default of 128 operations in a transaction, a branch has room for 41 items that it
// changes, or 62 that it only reads. Changed items take 3 of 125 operations, others 2. Their names
// and values may have half a MiB. The call that exceeds this returns a Bug. Prepare is one request;
// Commit and Rollback are two, of which one writes.
type Shard struct {
	keyspace
	now func() time.Time
}

var _ driver.Preparer[*ShardBranch] = (*Shard)(nil)

// NewShard keeps a shard in the keys under prefix + "interlock.shard:", which are in
// the line of no lock. Shards of different prefixes are independent. It does not
// block, and the client must outlive the shard.
func NewShard(client *clientv3.Client, prefix string) *Shard {
	return &Shard{keyspace: keyspace{client: client, prefix: prefix + reserved + "shard:"}, now: time.Now}
}

// The keys. Items are "balance/" or "value/" and a name, escaped like that of a lock,
// so without further slashes. A branch's key part is its own name, without slashes,
// and then its transaction.

func (s *Shard) postedKey(item string) string { return s.prefix + "posted/" + item }

// heldKey returns the key that names the branch that changes an item.
func (s *Shard) heldKey(item string) string { return s.prefix + "held/" + item }

// readKey returns the key of one branch that has read an item.
func (s *Shard) readKey(item string, x driver.XID) string { return s.readers(item) + branchName(x) }

func (s *Shard) readers(item string) string { return s.prefix + "read/" + item + "/" }

// doubtKey exists from Prepare to Commit or Rollback, and endedKey from then on.
func (s *Shard) doubtKey(x driver.XID) string { return s.prefix + "doubt/" + branchName(x) }

func (s *Shard) endedKey(x driver.XID) string { return s.prefix + "ended/" + branchName(x) }

// lowKey is written at every removal of markers.
func (s *Shard) lowKey() string { return s.prefix + "low" }

func branchName(x driver.XID) string { return x.Branch + "/" + x.Transaction }

func balanceItem(account string) string { return "balance/" + escaper.Replace(account) }

func valueItem(name string) string { return "value/" + escaper.Replace(name) }

// ShardBalance is an account as seen outside of branches.
type ShardBalance struct {
	Posted  int64 // the sum of committed transactions
	Held    int64 // part of Posted that a branch in doubt takes if it commits
	Pending int64 // not in Posted: what a branch in doubt adds if it commits
	// Branch is the one in doubt, the zero XID if there is none. It holds the account
	// even if the sum of its amounts is zero.
	Branch  driver.XID
	Since   time.Time // when Branch was prepared, by that process's clock
	Version int64     // the revision that posted it, 0 if none did
}

// Available returns what can be taken, whatever the outcome of the branch in doubt.
func (b ShardBalance) Available() int64 { return b.Posted - b.Held }

// Balance reads an account at one instant, in one request; an account without
// transactions has the zero balance.
func (s *Shard) Balance(ctx context.Context, account string) (b ShardBalance, err error) {
	const op = "read balance"
	text, version, hold, err := s.look(ctx, op, account, balanceItem(account))
	if err != nil {
		return b, err
	}
	if b.Posted, err = readAmount(text); err != nil {
		return b, problem(op, account, interlock.Definite, err)
	}
	b.Version, b.Branch, b.Since = version, hold.xid(), hold.since()
	b.Held, b.Pending = max(0, -hold.Amount), max(0, hold.Amount)
	return b, nil
}

// ShardValue is a value as seen outside of branches.
type ShardValue struct {
	Data    []byte
	Version int64      // the revision that posted it, 0 if there is none
	Branch  driver.XID // the one in doubt that changes it, the zero XID if there is none
	Since   time.Time  // when Branch was prepared, by that process's clock
}

// Value reads a value at one instant, in one request; a missing value is the zero
// ShardValue.
func (s *Shard) Value(ctx context.Context, name string) (ShardValue, error) {
	text, version, hold, err := s.look(ctx, "read value", name, valueItem(name))
	return ShardValue{Data: text, Version: version, Branch: hold.xid(), Since: hold.since()}, err
}

// look returns the posted value of an item, and the branch that holds it.
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
			err = problem(op, name, interlock.Definite, err)
		}
	}
	return text, version, h, err
}

// An OverdrawnError rejects an amount that would make a balance negative, or larger
// than a balance can be. It is Definite, and leaves the branch unchanged.
type OverdrawnError struct {
	Account string
	Balance int64 // as the branch sees it
	Amount  int64 // to be added
}

// Error includes both numbers.
func (e *OverdrawnError) Error() string {
	return fmt.Sprintf("%d added to the %d of account %q is not between 0 and %d", e.Amount, e.Balance, e.Account, int64(math.MaxInt64))
}

// ErrorKind returns Definite.
func (e *OverdrawnError) ErrorKind() interlock.ErrorKind { return interlock.Definite }

// A ChangedError rejects a branch whose reads are outdated. Like an
// interlock.HeldError it is Retryable, by another branch, which reads again.
type ChangedError struct {
	Name  string
	Read  int64 // the version that the branch read, 0 if there was none
	Found int64 // the current version
}

// Error includes both versions.
func (e *ChangedError) Error() string {
	return fmt.Sprintf("%q was changed: version %d was read, and version %d is stored", e.Name, e.Read, e.Found)
}

// ErrorKind returns Retryable.
func (e *ChangedError) ErrorKind() interlock.ErrorKind { return interlock.Retryable }

// hold is the value of a key that names the branch that changes or has read an item.
type hold struct {
	Transaction string `json:"transaction"`
	Branch      string `json:"branch"`
	Amount      int64  `json:"amount,omitempty"` // what is added to a balance
	Since       int64  `json:"since_us"`
}

func (h hold) xid() driver.XID { return driver.XID{Transaction: h.Transaction, Branch: h.Branch} }

func (h hold) since() time.Time { return recorded(h.Since) }

func readHold(kv *mvccpb.KeyValue) (h hold, err error) {
	if json.Unmarshal(kv.Value, &h) != nil || h.xid().Check() != nil {
		return hold{}, fmt.Errorf("key %q is not a reservation", kv.Key)
	}
	return h, nil
}

// doubt holds the pending changes of a prepared branch. Items are bytes, because
// JSON would change text that is not UTF-8.
type doubt struct {
	Since  int64        `json:"since_us"`
	Writes []doubtWrite `json:"writes,omitempty"`
	Reads  [][]byte     `json:"reads,omitempty"` // items
}

// doubtWrite is an item and its new content; none if it is removed.
type doubtWrite struct {
	Item   []byte `json:"item"`
	Text   []byte `json:"text,omitempty"`
	Amount int64  `json:"amount,omitempty"`
	Gone   bool   `json:"gone,omitempty"`
}

func readDoubt(kv *mvccpb.KeyValue) (d doubt, err error) {
	if json.Unmarshal(kv.Value, &d) != nil || d.Since == 0 {
		return doubt{}, fmt.Errorf("key %q is not a prepared branch", kv.Key)
	}
	return d, nil
}

// ended is the marker of a branch.
type ended struct {
	Committed bool  `json:"committed"`
	At        int64 `json:"at_us"`
}

func readEnded(kv *mvccpb.KeyValue) (e ended, err error) {
	if json.Unmarshal(kv.Value, &e) != nil || e.At == 0 {
		return ended{}, fmt.Errorf("key %q is not the marker of a branch", kv.Key)
	}
	return e, nil
}

// recorded converts a time of a record; 0 is the zero time.
func recorded(us int64) time.Time {
	if us == 0 {
		return time.Time{}
	}
	return time.UnixMicro(us).UTC()
}

// readAmount parses a balance; a missing key means 0.
func readAmount(text []byte) (int64, error) {
	if len(text) == 0 {
		return 0, nil
	}
	n, err := driver.ParseInt(string(text))
	if err != nil || n < 0 {
		return 0, fmt.Errorf("its key does not hold a balance: %.40q", text)
	}
	return n, nil
}
