package etcd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// Commit posts the changes of a branch, and leaves its marker; see
// driver.Participant. It is two requests, and one for a branch that has ended.
func (s *Shard) Commit(ctx context.Context, x driver.XID) error {
	return s.end(ctx, "commit branch", x, true)
}

// Rollback frees the reservations of a branch, and leaves a marker that makes every
// later Prepare of it vote no; see driver.Participant. It is two requests, and one for
// a branch that has ended.
func (s *Shard) Rollback(ctx context.Context, x driver.XID) error {
	return s.end(ctx, "roll back branch", x, false)
}

// endAttempts bounds how often a branch is read again because it changed: it is
// prepared once, ends once, and is forgotten once.
const endAttempts = 4

func (s *Shard) end(ctx context.Context, op string, x driver.XID, commit bool) error {
	name := branchName(x)
	if err := x.Check(); err != nil {
		return problem(op, name, interlock.Bug, err)
	}
	for range endAttempts {
		reply, err := s.do(ctx, op, name, nil, []clientv3.Op{clientv3.OpGet(s.doubtKey(x)), clientv3.OpGet(s.endedKey(x))}, nil)
		if err != nil {
			return err
		}
		done, err := s.endOnce(ctx, op, x, commit, reply.Responses[0].GetResponseRange().Kvs, reply.Responses[1].GetResponseRange().Kvs)
		if done || err != nil {
			return err
		}
	}
	return problem(op, name, interlock.Retryable, errors.New("other clients kept changing the branch"))
}

// endOnce ends a branch as it was read. It does nothing if the branch has changed.
func (s *Shard) endOnce(ctx context.Context, op string, x driver.XID, commit bool, doubted, marker []*mvccpb.KeyValue) (done bool, err error) {
	name := branchName(x)
	if len(marker) > 0 {
		e, err := readEnded(marker[0])
		if err == nil && e.Committed != commit {
			err = fmt.Errorf("%w: %s at %v", driver.ErrHeuristic, outcomeName(e.Committed), recorded(e.At))
		}
		if err != nil {
			err = problem(op, name, interlock.Definite, err)
		}
		return true, err
	}
	when := []clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(s.endedKey(x)), "=", 0)}
	if len(doubted) == 0 {
		if commit {
			return true, problem(op, name, interlock.Definite, fmt.Errorf("%w: no record of it exists", driver.ErrHeuristic))
		}
		when = append(when, clientv3.Compare(clientv3.CreateRevision(s.doubtKey(x)), "=", 0))
		return s.settle(ctx, op, name, when, []clientv3.Op{s.mark(x, false)})
	}
	d, err := readDoubt(doubted[0])
	if err != nil {
		return true, problem(op, name, interlock.Definite, err)
	}
	when = append(when, clientv3.Compare(clientv3.ModRevision(s.doubtKey(x)), "=", doubted[0].ModRevision))
	return s.settle(ctx, op, name, when, s.endOps(x, d, commit))
}

// endOps frees all reservations of a branch, and posts its changes if it is committed.
func (s *Shard) endOps(x driver.XID, d doubt, commit bool) (ops []clientv3.Op) {
	if commit {
		ops = s.post(d)
	}
	for _, w := range d.Writes {
		ops = append(ops, clientv3.OpDelete(s.heldKey(string(w.Item))))
	}
	for _, item := range d.Reads {
		ops = append(ops, clientv3.OpDelete(s.readKey(string(item), x)))
	}
	return append(ops, clientv3.OpDelete(s.doubtKey(x)), s.mark(x, commit))
}

func (s *Shard) settle(ctx context.Context, op, name string, when []clientv3.Cmp, then []clientv3.Op) (done bool, err error) {
	reply, err := s.do(ctx, op, name, when, then, nil)
	return err == nil && reply.Succeeded, err
}

func outcomeName(committed bool) string {
	if committed {
		return "it was committed"
	}
	return "it was rolled back"
}

// Page sizes: branches read at once, and markers removed at once.
const (
	shardPage  = 200
	forgetPage = 100
)

// InDoubt lists the prepared branches; see driver.Participant. Since is by the
// clock of the process that prepared them. It takes a request for each 200.
func (s *Shard) InDoubt(ctx context.Context) (doubts []driver.InDoubt, err error) {
	err = s.each(ctx, "list branches in doubt", "doubt/", shardPage, func(x driver.XID, kv *mvccpb.KeyValue) error {
		d, err := readDoubt(kv)
		doubts = append(doubts, driver.InDoubt{XID: x, Since: recorded(d.Since)})
		return err
	}, nil)
	return doubts, err
}

// each visits branches below a part of the prefix, and calls after after each page.
func (s *Shard) each(ctx context.Context, op, part string, page int64, visit func(driver.XID, *mvccpb.KeyValue) error, after func() (more bool, err error)) error {
	all := s.prefix + part
	from := all
	for {
		reply, err := s.do(ctx, op, "all", nil, []clientv3.Op{clientv3.OpGet(from, clientv3.WithRange(clientv3.GetPrefixRangeEnd(all)), clientv3.WithLimit(page))}, nil)
		if err != nil {
			return err
		}
		kvs := reply.Responses[0].GetResponseRange().Kvs
		for _, kv := range kvs {
			branch, transaction, _ := strings.Cut(strings.TrimPrefix(string(kv.Key), all), "/")
			x := driver.XID{Transaction: transaction, Branch: branch}
			err := x.Check()
			if err == nil {
				err = visit(x, kv)
			}
			if err != nil {
				return problem(op, branchName(x), interlock.Definite, err)
			}
			from = string(kv.Key) + "\x00"
		}
		if after != nil {
			if more, err := after(); err != nil || !more {
				return err
			}
		}
		if int64(len(kvs)) < page {
			return nil
		}
	}
}

// Forget removes at most limit markers of branches that ended before a time, and returns how
// many. The time is by the clock of the process that ended a branch. No process may ask for
// these branches any more: they are unknown afterwards, and can begin again. Branches that began
// before Forget and are not yet prepared are refused with a *ChangedError, because a rolled back
// one might be among them. It reads every marker.
func (s *Shard) Forget(ctx context.Context, before time.Time, limit int) (forgotten int, err error) {
	const op = "forget branches"
	var old []clientv3.Op
	err = s.each(ctx, op, "ended/", forgetPage, func(_ driver.XID, kv *mvccpb.KeyValue) error {
		e, err := readEnded(kv)
		if err == nil && recorded(e.At).Before(before) && forgotten+len(old) < limit {
			old = append(old, clientv3.OpDelete(string(kv.Key)))
		}
		return err
	}, func() (bool, error) {
		if len(old) == 0 {
			return forgotten < limit, nil
		}
		_, err := s.do(ctx, op, "all", nil, append(old, clientv3.OpPut(s.lowKey(), "")), nil)
		if err == nil {
			forgotten += len(old)
		}
		old = nil
		return forgotten < limit, err
	})
	return forgotten, err
}
