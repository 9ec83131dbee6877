package etcd

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// Enter raises the epoch of a shard; see driver.Journal. It takes two requests, and
// more if other processes enter at once.
func (j *Journal) Enter(ctx context.Context, shard int, epoch interlock.Token) error {
	const op = "enter shard"
	name, key := driver.ShardName(shard), j.shardKey(shard)
	if shard < 0 || !epoch.Valid() {
		return problem(op, name, interlock.Bug, fmt.Errorf("%d is not a token", int64(epoch)))
	}
	if err := plausible(op, name, epoch, j.now()); err != nil {
		return err
	}
	for {
		// A missing key compares as one without a value.
		reply, err := j.do(ctx, op, name, []clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(key), "=", 0)},
			[]clientv3.Op{clientv3.OpPut(key, driver.FormatPadded(int64(epoch)))},
			[]clientv3.Op{clientv3.OpTxn([]clientv3.Cmp{clientv3.Compare(clientv3.Value(key), "<", driver.FormatPadded(int64(epoch)+1))},
				[]clientv3.Op{clientv3.OpPut(key, driver.FormatPadded(int64(epoch)))}, []clientv3.Op{clientv3.OpGet(key)})})
		if err != nil || reply.Succeeded || reply.Responses[0].GetResponseTxn().Succeeded {
			return err
		}
		kvs := reply.Responses[0].GetResponseTxn().Responses[0].GetResponseRange().Kvs
		if len(kvs) == 0 {
			continue // deleted by an operator at this moment
		}
		return j.judgeEpoch(op, shard, kvs[0].Value, epoch)
	}
}

// judgeEpoch returns the error for an epoch that is not the shard's.
func (j *Journal) judgeEpoch(op string, shard int, stored []byte, got interlock.Token) error {
	name := driver.ShardName(shard)
	seen, err := interlock.ParseToken(strings.TrimLeft(string(stored), "0")) // it is padded
	if len(stored) == 0 {
		seen, err = 0, nil
	}
	switch {
	case err != nil:
		return problem(op, name, interlock.Definite, fmt.Errorf("its key does not hold an epoch: %.40q", stored))
	case seen > got:
		return problem(op, name, interlock.Definite, &interlock.StaleTokenError{Resource: name, Seen: seen, Got: got})
	case seen < got:
		return problem(op, name, interlock.Bug, fmt.Errorf("no owner has entered with epoch %d", got))
	}
	return nil
}

// Bounds of one request: appends, and their bytes, by etcd's defaults of 128
// operations and 1.5 MiB.
const (
	maxAppends     = 32
	maxAppendBytes = 1 << 20
)

// Append applies each append atomically, in as few requests as the bounds allow; see
// driver.Journal.
func (j *Journal) Append(ctx context.Context, appends []driver.Append) []error {
	errs := make([]error, len(appends))
	var group []int
	size := 0
	for i, a := range appends {
		if errs[i] = driver.CheckAppend(appends, i); errs[i] != nil {
			continue
		}
		bytes := appendBytes(a)
		if len(group) == maxAppends || len(group) > 0 && size+bytes > maxAppendBytes {
			j.appendGroup(ctx, appends, group, errs)
			group, size = nil, 0
		}
		group, size = append(group, i), size+bytes
	}
	if len(group) > 0 {
		j.appendGroup(ctx, appends, group, errs)
	}
	return errs
}

// appendBytes returns an upper bound of the size of an append in a request.
func appendBytes(a driver.Append) int {
	size := 6 * (len(a.Transaction) + 200)
	for _, r := range a.Records {
		size += len(r.Data) + 6*(len(r.Kind)+len(r.Step)) + 200 // JSON has up to six bytes for one
	}
	return size
}

// appendGroup sends appends in one request. If etcd refuses some, a second request sends
// these again, and reads the reasons.
func (j *Journal) appendGroup(ctx context.Context, appends []driver.Append, group []int, errs []error) {
	for _, look := range []bool{false, true} {
		var ops []clientv3.Op
		for _, i := range group {
			when, then := j.appendOps(&appends[i])
			var otherwise []clientv3.Op
			if look {
				otherwise = j.lookOps(appends[i])
			}
			ops = append(ops, clientv3.OpTxn(when, then, otherwise))
		}
		reply, err := j.do(ctx, "append", appends[group[0]].Transaction, nil, ops, nil)
		var refused []int
		for k, i := range group {
			switch {
			case err != nil:
				errs[i] = err
			case reply.Responses[k].GetResponseTxn().Succeeded:
			case look:
				errs[i] = j.refusal(appends[i], (*clientv3.TxnResponse)(reply.Responses[k].GetResponseTxn()))
			default:
				refused = append(refused, i)
			}
		}
		if group = refused; len(group) == 0 {
			return
		}
	}
}

// appendOps returns the conditions and the operations of an append.
func (j *Journal) appendOps(a *driver.Append) (when []clientv3.Cmp, then []clientv3.Op) {
	now := j.now()
	if a.Epoch != 0 {
		when = append(when, clientv3.Compare(clientv3.Value(j.shardKey(a.Shard)), "=", driver.FormatPadded(int64(a.Epoch))))
	}
	if a.After == 0 {
		about := j.aboutKey(a.Transaction)
		when = append(when, clientv3.Compare(clientv3.CreateRevision(about), "=", 0))
		then = append(then, clientv3.OpPut(about, driver.FormatPadded(now.UnixMicro())+a.Type))
		if a.Shards != 0 {
			when = append(when, clientv3.Compare(clientv3.Value(j.shardsKey()), "=", strconv.Itoa(a.Shards)))
		}
	} else {
		follows := func(relation, state string) clientv3.Cmp {
			return j.sinceLast(a.Transaction, a.After, func(key string) clientv3.Cmp { return clientv3.Compare(clientv3.Value(key), relation, state) })
		}
		when = append(when,
			follows(">", before(logState(goesOn, a.Shard, a.After))),
			follows("<", logState(goesOn, a.Shard, a.After+1)))
	}
	h := driver.Head{Transaction: a.Transaction, Shard: a.Shard, Position: a.After + int64(len(a.Records)), Due: a.Due}
	if a.Due.IsZero() {
		h.Ended, a.Ended = now, time.UnixMicro(now.UnixMicro()).UTC()
		then = append(then, clientv3.OpPut(j.endedKey(h), ""))
	} else {
		then = append(then, clientv3.OpPut(j.dueKey(h), ""))
	}
	if left := (driver.Head{Transaction: a.Transaction, Shard: a.Shard, Due: a.Was}); a.After > 0 && !a.Was.IsZero() &&
		(a.Due.IsZero() || j.dueKey(left) != j.dueKey(h)) {
		then = append(then, clientv3.OpDelete(j.dueKey(left)))
	}
	return when, append(then, clientv3.OpPut(j.logKey(a.Transaction, h.Position), logText(h, logOfRecords(a.Records, a.Epoch, now))))
}

// before returns a text below text and everything that begins with it, and above
// all lower texts of its length.
func before(text string) string { return text[:len(text)-1] + string(text[len(text)-1]-1) + "\xff" }

// lookOps reads the reason of a refused append.
func (j *Journal) lookOps(a driver.Append) []clientv3.Op {
	return []clientv3.Op{clientv3.OpGet(j.shardKey(a.Shard)), j.getLast(a.Transaction), clientv3.OpGet(j.aboutKey(a.Transaction)),
		clientv3.OpGet(j.shardsKey())}
}

// refusal returns why an append was refused.
func (j *Journal) refusal(a driver.Append, look *clientv3.TxnResponse) error {
	const op = "append"
	var epoch []byte
	if kvs := look.Responses[0].GetResponseRange().Kvs; len(kvs) > 0 {
		epoch = kvs[0].Value
	}
	if a.Epoch != 0 {
		if err := j.judgeEpoch(op, a.Shard, epoch, a.Epoch); err != nil {
			return err
		}
	}
	p, err := readPlaced(a.Transaction, look.Responses[1].GetResponseRange().Kvs, look.Responses[2].GetResponseRange().Kvs)
	switch {
	case err != nil:
		return problem(op, a.Transaction, interlock.Definite, err)
	case p.Position == 0 && a.After == 0 && a.Shards != 0:
		stored, err := j.numberOfShards("append", look.Responses[3].GetResponseRange().Kvs)
		if err == nil {
			err = &driver.ShardsError{Stored: stored, Opened: a.Shards}
		}
		return err
	case p.Position == a.After && p.Ended.IsZero() && p.Shard != a.Shard:
		return problem(op, a.Transaction, interlock.Bug, fmt.Errorf("it is in shard %d, not in %d", p.Shard, a.Shard))
	case p.Position == a.After && p.Ended.IsZero():
		return problem(op, a.Transaction, interlock.Definite, errors.New("its keys were changed by hand"))
	}
	return &driver.PositionError{Transaction: a.Transaction, After: a.After, Found: p.Head}
}
