package etcd

import (
	"context"
	"strconv"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Forget removes what ended long ago; see driver.JournalKeeper. It goes by the index of what
// has ended, and looks at every payload there is. Each call also looks at fifty entries of
// the due index, and at fifty transactions, for what versions before that index have left.
func (j *Journal) Forget(ctx context.Context, before time.Time, limit int) (forgotten int, err error) {
	from, to := j.prefix+"ended/", j.endedAt(before)
	for more := true; more && forgotten < limit; {
		var list []entry
		if list, more, err = j.look(ctx, "forget", from, to, len(j.endedAt(before)), min(duePage, limit-forgotten)); err != nil {
			return forgotten, err
		}
		for _, e := range list {
			from = e.key + "\x00"
			if err := j.forget(ctx, e.at, e.key); err != nil {
				return forgotten, err
			}
			if !e.at.Ended.IsZero() {
				forgotten++
			}
		}
	}
	n, err := j.sweepHeads(ctx, before, limit-forgotten)
	if forgotten += n; err != nil {
		return forgotten, err
	}
	if err := j.sweepDue(ctx); err != nil {
		return forgotten, err
	}
	return forgotten, j.forgetPayloads(ctx, before)
}

// forget removes an ended transaction, in one step: nothing can be appended to it. An entry
// of the index that belongs to no ended transaction goes alone.
func (j *Journal) forget(ctx context.Context, p located, entry string) error {
	then := []clientv3.Op{clientv3.OpDelete(entry)}
	if id := p.Transaction; !p.Ended.IsZero() {
		then = append(then, clientv3.OpDelete(j.headKey(id)), clientv3.OpDelete(j.aboutKey(id)),
			clientv3.OpDelete(j.prefix+"record/"+id+"\x00", clientv3.WithPrefix()),
			clientv3.OpDelete(j.prefix+"payload/"+id+"\x00", clientv3.WithPrefix()))
	}
	_, id, _ := strings.Cut(strings.TrimPrefix(entry, j.prefix+"ended/"), "/")
	_, err := j.do(ctx, "forget", id, []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(j.headKey(id)), "=", p.revision)}, then, nil)
	return err
}

// sweepHeads looks at the next page of transactions for those that have ended and are not
// in the index.
func (j *Journal) sweepHeads(ctx context.Context, before time.Time, limit int) (forgotten int, err error) {
	j.mu.Lock()
	behind := j.sweptIn
	j.mu.Unlock()
	list, more, err := j.heads(ctx, "forget", behind, duePage)
	if err != nil {
		return 0, err
	}
	for _, p := range list {
		if forgotten == limit {
			return forgotten, nil
		}
		if behind = p.Transaction; p.Ended.IsZero() || !p.Ended.Before(before) {
			continue
		}
		if err := j.forget(ctx, p, j.endedKey(p.Head)); err != nil {
			return forgotten, err
		}
		forgotten++
	}
	if !more {
		behind = ""
	}
	j.mu.Lock()
	j.sweptIn = behind
	j.mu.Unlock()
	return forgotten, nil
}

// sweepDue removes, from the next page of the due index, what transactions have left.
func (j *Journal) sweepDue(ctx context.Context) error {
	const op = "sweep due index"
	all := j.prefix + "due/"
	j.mu.Lock()
	from := max(j.swept, all)
	j.mu.Unlock()
	list, more, err := j.entries(ctx, op, from, clientv3.GetPrefixRangeEnd(all))
	if err != nil {
		return err
	}
	var ops []clientv3.Op
	for _, e := range list {
		if from = e.key + "\x00"; !j.current(e) {
			when := []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(j.headKey(e.id)), "=", e.at.revision)}
			ops = append(ops, clientv3.OpTxn(when, []clientv3.Op{clientv3.OpDelete(e.key)}, nil))
		}
	}
	if len(ops) > 0 {
		if _, err := j.do(ctx, op, "due index", nil, ops, nil); err != nil {
			return err
		}
	}
	if !more {
		from = ""
	}
	j.mu.Lock()
	j.swept = from
	j.mu.Unlock()
	return nil
}

// forgetPayloads removes old payloads whose transaction does not exist.
func (j *Journal) forgetPayloads(ctx context.Context, before time.Time) error {
	const op = "forget payloads"
	all := j.prefix + "payload/"
	from := all
	for {
		reply, err := j.do(ctx, op, "all", nil, []clientv3.Op{clientv3.OpGet(from, clientv3.WithRange(clientv3.GetPrefixRangeEnd(all)), clientv3.WithLimit(1))}, nil)
		if err != nil {
			return err
		}
		kvs := reply.Responses[0].GetResponseRange().Kvs
		if len(kvs) == 0 {
			return nil
		}
		key := string(kvs[0].Key)
		id, _, _ := strings.Cut(strings.TrimPrefix(key, all), "\x00")
		kept, _, _ := strings.Cut(string(kvs[0].Value), "\n")
		if us, err := strconv.ParseInt(kept, 10, 64); err == nil && time.UnixMicro(us).Before(before) {
			when := []clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(j.headKey(id)), "=", 0),
				clientv3.Compare(clientv3.ModRevision(key), "=", kvs[0].ModRevision)}
			if _, err := j.do(ctx, op, id, when, []clientv3.Op{clientv3.OpDelete(key)}, nil); err != nil {
				return err
			}
		}
		from = key + "\x00"
	}
}
