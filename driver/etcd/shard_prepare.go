package etcd

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

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
	if b.over {
		return problem(op, branchName(b.xid), interlock.Bug, errBranchOver)
	}
	b.over = true
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
