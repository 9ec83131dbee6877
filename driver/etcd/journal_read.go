package etcd

import (
	"context"
	"fmt"
	"slices"
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
	reply, err := j.do(ctx, op, id, nil, []clientv3.Op{j.getLast(id), clientv3.OpGet(j.aboutKey(id)),
		clientv3.OpGet(j.logOf(id), clientv3.WithRange(j.logKey(id, max(0, after))))}, nil)
	if err != nil {
		return driver.Head{}, nil, err
	}
	p, err := readPlaced(id, reply.Responses[0].GetResponseRange().Kvs, reply.Responses[1].GetResponseRange().Kvs)
	var records []driver.Record
	for _, kv := range slices.Backward(reply.Responses[2].GetResponseRange().Kvs) {
		l, bad := readLog(kv)
		if bad != nil && err == nil {
			err = bad
		}
		records = append(records, l.records(after)...)
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

// Heads lists transactions by their ids; see driver.Journal. It takes two requests
// for each hundred.
func (j *Journal) Heads(ctx context.Context, behind string, limit int) (heads []driver.Head, err error) {
	if err := driver.CheckAfter(behind); err != nil {
		return nil, err
	}
	for more := true; more && len(heads) < limit; more = behind != "" {
		var list []located
		if list, behind, err = j.heads(ctx, "list transactions", behind, min(headsPage, limit-len(heads))); err != nil {
			return nil, err
		}
		for _, p := range list {
			heads = append(heads, p.Head)
		}
	}
	return heads, nil
}

// headsPage is how many transactions are listed at once.
const headsPage = 100

// heads returns a page of transactions, and the last id of it if there may be more. Those that are removed between the two requests are
// not in it.
func (j *Journal) heads(ctx context.Context, op, behind string, limit int) (list []located, next string, err error) {
	all := j.aboutKey("")
	reply, err := j.do(ctx, op, "all", nil, []clientv3.Op{clientv3.OpGet(all+behind+"\x00",
		clientv3.WithRange(clientv3.GetPrefixRangeEnd(all)), clientv3.WithLimit(int64(limit)))}, nil)
	if err != nil {
		return nil, "", err
	}
	abouts := reply.Responses[0].GetResponseRange()
	var ops []clientv3.Op
	for _, kv := range abouts.Kvs {
		next = strings.TrimPrefix(string(kv.Key), all)
		ops = append(ops, j.getLast(next))
	}
	if len(ops) == 0 {
		return nil, "", nil
	}
	if reply, err = j.do(ctx, op, "all", nil, ops, nil); err != nil {
		return nil, "", err
	}
	for i, kv := range abouts.Kvs {
		last := reply.Responses[i].GetResponseRange().Kvs
		if len(last) == 0 {
			continue
		}
		id := strings.TrimPrefix(string(kv.Key), all)
		p, err := readPlaced(id, last, abouts.Kvs[i:i+1])
		if err != nil {
			return nil, "", problem(op, id, interlock.Definite, err)
		}
		list = append(list, p)
	}
	if !abouts.More {
		next = ""
	}
	return list, next, nil
}

// Unscheduled counts unfinished transactions without an entry in the due index; see
// driver.Journal. It reads every transaction.
func (j *Journal) Unscheduled(ctx context.Context) (count int, err error) {
	behind := ""
	for more := true; more; more = behind != "" {
		var list []located
		if list, behind, err = j.heads(ctx, "count unscheduled", behind, headsPage); err != nil {
			return 0, err
		}
		for _, p := range list {
			if !p.Ended.IsZero() {
				continue
			}
			// It counts as missing only if the transaction has not changed since
			// the read.
			reply, err := j.do(ctx, "count unscheduled", p.Transaction, []clientv3.Cmp{j.unchanged(p.Transaction, p),
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
