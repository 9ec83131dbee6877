package etcd

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// Read returns a transaction's head and records, in one request; see
// driver.Journal.
func (j *Journal) Read(ctx context.Context, id string, after int64) (driver.Head, []driver.Record, error) {
	const op = "read journal"
	if err := driver.CheckTransaction(op, id); err != nil {
		return driver.Head{}, nil, err
	}
	last := clientv3.GetPrefixRangeEnd(j.recordKey(id, 0)[:len(j.recordKey(id, 0))-driver.PaddedLength])
	reply, err := j.do(ctx, op, id, nil, []clientv3.Op{clientv3.OpGet(j.headKey(id)), clientv3.OpGet(j.aboutKey(id)),
		clientv3.OpGet(j.recordKey(id, max(0, after)+1), clientv3.WithRange(last))}, nil)
	if err != nil {
		return driver.Head{}, nil, err
	}
	p, err := j.readPlaced(id, reply.Responses[0].GetResponseRange().Kvs, reply.Responses[1].GetResponseRange().Kvs)
	var records []driver.Record
	for _, kv := range reply.Responses[2].GetResponseRange().Kvs {
		r, bad := readLogged(kv)
		if bad != nil && err == nil {
			err = bad
		}
		records = append(records, r)
	}
	if err != nil {
		return driver.Head{}, nil, problem(op, id, interlock.Definite, err)
	}
	return p.Head, records, nil
}

// PutPayload stores a payload; see driver.Journal.
func (j *Journal) PutPayload(ctx context.Context, id string, sum, payload []byte) error {
	if err := driver.CheckPayload(id, sum, payload); err != nil {
		return err
	}
	key := j.payloadKey(id, sum)
	_, err := j.do(ctx, "keep payload", id, nil, []clientv3.Op{clientv3.OpPut(key, strconv.FormatInt(j.now().UnixMicro(), 10)+"\n"+string(payload))}, nil)
	return err
}

// Payload returns a stored payload; see driver.Journal.
func (j *Journal) Payload(ctx context.Context, id string, sum []byte) ([]byte, error) {
	const op = "read payload"
	if err := driver.CheckTransaction(op, id); err != nil {
		return nil, err
	}
	reply, err := j.do(ctx, op, id, nil, []clientv3.Op{clientv3.OpGet(j.payloadKey(id, sum))}, nil)
	if err != nil {
		return nil, err
	}
	kvs := reply.Responses[0].GetResponseRange().Kvs
	if len(kvs) == 0 {
		return nil, nil
	}
	_, payload, ok := strings.Cut(string(kvs[0].Value), "\n")
	if !ok {
		return nil, problem(op, id, interlock.Definite, fmt.Errorf("key %q is not a payload", kvs[0].Key))
	}
	return []byte(payload), nil
}

// Heads lists transactions by their ids; see driver.Journal. It takes one request
// for each fifty.
func (j *Journal) Heads(ctx context.Context, behind string, limit int) (heads []driver.Head, err error) {
	if err := driver.CheckAfter(behind); err != nil {
		return nil, err
	}
	for more := true; more && len(heads) < limit; {
		var list []located
		if list, more, err = j.heads(ctx, "list transactions", behind, min(duePage, limit-len(heads))); err != nil {
			return nil, err
		}
		for _, p := range list {
			heads, behind = append(heads, p.Head), p.Transaction
		}
	}
	return heads, nil
}

// heads returns a page of transactions.
func (j *Journal) heads(ctx context.Context, op, behind string, limit int) (list []located, more bool, err error) {
	each := func(key func(string) string) clientv3.Op {
		return clientv3.OpGet(key(behind)+"\x00", clientv3.WithRange(clientv3.GetPrefixRangeEnd(key(""))), clientv3.WithLimit(int64(limit)))
	}
	reply, err := j.do(ctx, op, "all", nil, []clientv3.Op{each(j.headKey), each(j.aboutKey)}, nil)
	if err != nil {
		return nil, false, err
	}
	head, about := reply.Responses[0].GetResponseRange().Kvs, reply.Responses[1].GetResponseRange().Kvs
	for i := range head {
		id := strings.TrimPrefix(string(head[i].Key), j.headKey(""))
		p, err := j.readPlaced(id, head[i:i+1], about[min(i, len(about)):min(i+1, len(about))])
		if err != nil {
			return nil, false, problem(op, id, interlock.Definite, err)
		}
		list = append(list, p)
	}
	return list, len(list) == limit, nil
}

// Unscheduled counts unfinished transactions without an entry in the due index; see
// driver.Journal. It reads every transaction.
func (j *Journal) Unscheduled(ctx context.Context) (count int, err error) {
	behind := ""
	for more := true; more; {
		var list []located
		if list, more, err = j.heads(ctx, "count unscheduled", behind, duePage); err != nil {
			return 0, err
		}
		for _, p := range list {
			if behind = p.Transaction; !p.Ended.IsZero() {
				continue
			}
			// It counts as missing only if the transaction has not changed since
			// the read.
			reply, err := j.do(ctx, "count unscheduled", p.Transaction, []clientv3.Cmp{
				clientv3.Compare(clientv3.ModRevision(j.headKey(p.Transaction)), "=", p.revision),
				clientv3.Compare(clientv3.CreateRevision(j.dueKey(p.Head)), "=", 0)}, nil, nil)
			if err != nil {
				return 0, err
			}
			if reply.Succeeded {
				count++
			}
		}
	}
	return count, nil
}
