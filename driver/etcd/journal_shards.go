package etcd

import (
	"context"
	"fmt"
	"strconv"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// Shards stores or returns the number of shards; see driver.Journal.
func (j *Journal) Shards(ctx context.Context, from, to int) (int, error) {
	const op, name = "read shards", "all"
	key := j.shardsKey()
	unchanged := clientv3.Compare(clientv3.CreateRevision(key), "=", 0)
	if from != 0 {
		unchanged = clientv3.Compare(clientv3.Value(key), "=", strconv.Itoa(from))
	}
	former := clientv3.OpGet(j.prefix+"head/", clientv3.WithPrefix(), clientv3.WithCountOnly())
	get := []clientv3.Op{former, clientv3.OpGet(key)}
	then := get
	if to != 0 {
		then = []clientv3.Op{former, clientv3.OpPut(key, strconv.Itoa(to))}
	}
	reply, err := j.do(ctx, op, name, []clientv3.Cmp{unchanged}, then, get)
	if err != nil {
		return 0, err
	}
	if n := reply.Responses[0].GetResponseRange().Count; n > 0 {
		return 0, problem(op, name, interlock.Definite, fmt.Errorf("%d transactions have the keys of a former version (%shead/): stop all processes and remove the keys with the prefix %q once the former version has ended all transactions", n, j.prefix, j.prefix))
	}
	if reply.Succeeded && to != 0 {
		return to, nil
	}
	return j.numberOfShards(op, reply.Responses[1].GetResponseRange().Kvs)
}

func (j *Journal) shardsKey() string { return j.prefix + "shards" }

// numberOfShards parses the number; 0 if there is none.
func (j *Journal) numberOfShards(op string, kvs []*mvccpb.KeyValue) (int, error) {
	if len(kvs) == 0 {
		return 0, nil
	}
	n, err := driver.ParseInt(string(kvs[0].Value))
	if err != nil || n == 0 {
		return 0, problem(op, "all", interlock.Definite, fmt.Errorf("key %q does not hold a number: %.40q", j.shardsKey(), kvs[0].Value))
	}
	return int(n), nil
}

// Reassign moves an unfinished transaction to another shard; see driver.Journal.
func (j *Journal) Reassign(ctx context.Context, h driver.Head, shard int) error {
	const op = "reassign"
	id := h.Transaction
	reply, err := j.do(ctx, op, id, nil, []clientv3.Op{j.getLast(id), clientv3.OpGet(j.aboutKey(id))}, nil)
	if err != nil {
		return err
	}
	p, err := readPlaced(id, reply.Responses[0].GetResponseRange().Kvs, reply.Responses[1].GetResponseRange().Kvs)
	if err != nil {
		return problem(op, id, interlock.Definite, err)
	}
	if p.Position != h.Position || p.Shard != h.Shard || !p.Ended.IsZero() || p.Shard == shard {
		return nil
	}
	moved := p.Head
	moved.Shard = shard
	_, err = j.do(ctx, op, id, []clientv3.Cmp{j.unchanged(id, p)}, []clientv3.Op{
		clientv3.OpDelete(j.dueKey(p.Head)), clientv3.OpPut(j.dueKey(moved), ""),
		clientv3.OpPut(j.logKey(id, p.Position), logText(moved, p.log)),
	}, nil)
	return err
}
