package etcd

import (
	"context"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// KeyValues is a key-value store with compare-and-swap: a step is one transaction, and revisions
// are etcd's. It implements driver.KeyValues. A step with more bytes than etcd's limit for a
// request (1.5 MiB by default) is refused, Definite.
type KeyValues struct{ keyspace }

var _ driver.KeyValues = (*KeyValues)(nil)

// NewKeyValues keeps values under prefix, in the keys "interlock.kv:" + key. It does no I/O,
// and the client must outlive the store.
func NewKeyValues(client *clientv3.Client, prefix string) *KeyValues {
	return &KeyValues{keyspace{client: client, prefix: prefix + reserved + "kv:"}}
}

// getsAtOnce is etcd's default limit of operations in a transaction.
const getsAtOnce = 128

// Get reads keys; see driver.KeyValues. More than 128 are several requests.
func (k *KeyValues) Get(ctx context.Context, keys ...string) ([]driver.KeyValue, error) {
	const op = "get keys"
	var gets []clientv3.Op
	for _, key := range keys {
		if err := driver.CheckName(op, "a key", key, driver.MaxName); err != nil {
			return nil, err
		}
		gets = append(gets, clientv3.OpGet(k.prefix+key))
	}
	got := make([]driver.KeyValue, 0, len(keys))
	for len(gets) > 0 {
		n := min(len(gets), getsAtOnce)
		reply, err := k.do(ctx, op, keys[len(got)], nil, gets[:n], nil)
		if err != nil {
			return nil, err
		}
		for _, r := range reply.Responses {
			kv := driver.KeyValue{Key: keys[len(got)]}
			for _, found := range r.GetResponseRange().Kvs {
				kv.Value, kv.Revision = found.Value, found.ModRevision
			}
			got = append(got, kv)
		}
		gets = gets[n:]
	}
	return got, nil
}

// Swap applies all swaps or none, by one transaction; see driver.KeyValues.
func (k *KeyValues) Swap(ctx context.Context, swaps ...driver.Swap) (int64, error) {
	const op = "swap keys"
	if err := driver.CheckSwaps(swaps); err != nil {
		return 0, problem(op, "", interlock.Bug, err)
	}
	var compares []clientv3.Cmp
	var ops []clientv3.Op
	for _, s := range swaps {
		compares = append(compares, clientv3.Compare(clientv3.ModRevision(k.prefix+s.Key), "=", s.Revision))
		if s.Delete {
			ops = append(ops, clientv3.OpDelete(k.prefix+s.Key))
		} else {
			ops = append(ops, clientv3.OpPut(k.prefix+s.Key, string(s.Value)))
		}
	}
	reply, err := k.do(ctx, op, swaps[0].Key, compares, ops, nil)
	if err != nil || !reply.Succeeded {
		return 0, err
	}
	return reply.Header.Revision, nil
}

// Scan reads a range of keys; see driver.KeyValues.
func (k *KeyValues) Scan(ctx context.Context, from, to string, limit int) ([]driver.KeyValue, error) {
	end := k.prefix + to
	switch {
	case limit <= 0, to != "" && to <= from:
		return nil, nil // etcd would take that as no limit, or as a range without an end
	case to == "":
		end = clientv3.GetPrefixRangeEnd(k.prefix)
	}
	reply, err := k.do(ctx, "scan keys", from, nil, []clientv3.Op{clientv3.OpGet(k.prefix+from, clientv3.WithRange(end), clientv3.WithLimit(int64(limit)))}, nil)
	if err != nil {
		return nil, err
	}
	var got []driver.KeyValue
	for _, kv := range reply.Responses[0].GetResponseRange().Kvs {
		got = append(got, driver.KeyValue{Key: string(kv.Key[len(k.prefix):]), Value: kv.Value, Revision: kv.ModRevision})
	}
	return got, nil
}
