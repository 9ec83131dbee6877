package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

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

// entry is an entry of the due index; its transaction may have left it.
type entry struct {
	key, id string
	at      located // the transaction's own state
}

// current reports whether the entry matches its transaction.
func (j *Journal) current(e entry) bool {
	return e.at.Position > 0 && e.at.Ended.IsZero() && j.dueKey(e.at.Head) == e.key
}

// duePage is how many entries of the index are read at once: each is checked by two
// operations of one request.
const duePage = 50

// entries returns a page of the index from key from to below key to, with the
// states of the transactions. more reports that there may be further ones.
func (j *Journal) entries(ctx context.Context, op, from, to string) (list []entry, more bool, err error) {
	return j.look(ctx, op, from, to, len(j.dueAt(0, time.UnixMilli(0))), duePage)
}

// look returns entries of an index whose keys have ids after start bytes.
func (j *Journal) look(ctx context.Context, op, from, to string, start, limit int) (list []entry, more bool, err error) {
	reply, err := j.do(ctx, op, "index", nil, []clientv3.Op{clientv3.OpGet(from, clientv3.WithRange(to), clientv3.WithLimit(int64(limit)), clientv3.WithKeysOnly())}, nil)
	if err != nil {
		return nil, false, err
	}
	var ops []clientv3.Op
	for _, kv := range reply.Responses[0].GetResponseRange().Kvs {
		e := entry{key: string(kv.Key), id: string(kv.Key[start:])}
		list = append(list, e)
		ops = append(ops, j.getLast(e.id), clientv3.OpGet(j.aboutKey(e.id)))
	}
	if len(list) == 0 {
		return nil, false, nil
	}
	if reply, err = j.do(ctx, op, "due index", nil, ops, nil); err != nil {
		return nil, false, err
	}
	for i := range list {
		list[i].at, err = readPlaced(list[i].id, reply.Responses[2*i].GetResponseRange().Kvs, reply.Responses[2*i+1].GetResponseRange().Kvs)
		if err != nil {
			return nil, false, problem(op, list[i].id, interlock.Definite, err)
		}
	}
	return list, len(list) == limit, nil
}

// Due lists unfinished transactions; see driver.Journal. It takes two requests for
// each fifty entries of the index.
func (j *Journal) Due(ctx context.Context, shard int, behind driver.Head, limit int) (heads []driver.Head, err error) {
	from, to := j.shardOfIndex(shard), clientv3.GetPrefixRangeEnd(j.shardOfIndex(shard))
	if behind.Transaction != "" {
		behind.Shard = shard
		from = j.dueKey(behind) + "\x00"
	}
	for more := true; more && len(heads) < limit; {
		var list []entry
		if list, more, err = j.entries(ctx, "list due", from, to); err != nil {
			return nil, err
		}
		for _, e := range list {
			if from = e.key + "\x00"; j.current(e) && len(heads) < limit {
				heads = append(heads, e.at.Head)
			}
		}
	}
	return heads, nil
}

// maxOps is how many operations one request has by etcd's default.
const maxOps = 128

// DueShards lists shards with due transactions; see driver.Journal. It takes one
// request for each 128 shards. It reads only the earliest index entry of a shard, and
// not its transaction, which may have left it: Claim removes such entries.
func (j *Journal) DueShards(ctx context.Context, shards []int, by time.Time) (due []int, err error) {
	all := slices.Compact(slices.Sorted(slices.Values(shards)))
	for some := range slices.Chunk(all, maxOps) {
		ops := make([]clientv3.Op, len(some))
		for i, shard := range some {
			ops[i] = clientv3.OpGet(j.shardOfIndex(shard), clientv3.WithRange(j.dueAfter(shard, by)), clientv3.WithLimit(1), clientv3.WithKeysOnly())
		}
		reply, err := j.do(ctx, "list due shards", "due index", nil, ops, nil)
		if err != nil {
			return nil, err
		}
		for i, shard := range some {
			if len(reply.Responses[i].GetResponseRange().Kvs) > 0 {
				due = append(due, shard)
			}
		}
	}
	return due, nil
}

// dueAfter returns the key after all entries of a shard that are due at a time.
func (j *Journal) dueAfter(shard int, at time.Time) string {
	return j.dueAt(shard, at.Add(time.Millisecond))
}

func (j *Journal) shardOfIndex(shard int) string { return fmt.Sprintf("%sdue/%09d/", j.prefix, shard) }

// Claim moves due times, and removes entries that transactions have left; see
// driver.Journal. It takes three requests for each fifty entries, and more if their last
// appends have more than 1 MiB.
func (j *Journal) Claim(ctx context.Context, shard int, epoch interlock.Token, by, until time.Time, limit int) (heads []driver.Head, err error) {
	const op = "claim"
	if until.IsZero() {
		return nil, problem(op, driver.ShardName(shard), interlock.Bug, errors.New("the new due time is missing"))
	}
	from, to := j.shardOfIndex(shard), j.dueAfter(shard, by)
	owned := clientv3.Compare(clientv3.Value(j.shardKey(shard)), "=", driver.FormatPadded(int64(epoch)))
	for more := true; more && len(heads) < limit; {
		var list []entry
		if list, more, err = j.entries(ctx, op, from, to); err != nil {
			return heads, err
		}
		var ops []clientv3.Op
		var claimed []driver.Head // in the order of ops; the zero Head for a removed entry
		size := 0                 // of the appends that are written again
		for _, e := range list {
			if size += e.at.size; size > maxAppendBytes && len(ops) > 0 {
				more = true
				break
			}
			if from = e.key + "\x00"; len(heads)+countHeads(claimed) == limit {
				more = false
				break
			}
			when, then, h := j.claimOps(e, until)
			ops, claimed = append(ops, clientv3.OpTxn(when, then, nil)), append(claimed, h)
		}
		reply, err := j.do(ctx, op, driver.ShardName(shard), []clientv3.Cmp{owned}, ops, []clientv3.Op{clientv3.OpGet(j.shardKey(shard))})
		if err != nil {
			return heads, err
		}
		if !reply.Succeeded {
			return heads, j.disowned(op, shard, epoch, reply)
		}
		for i, h := range claimed {
			if h.Transaction != "" && reply.Responses[i].GetResponseTxn().Succeeded {
				heads = append(heads, h)
			}
		}
	}
	return heads, nil
}

func countHeads(claimed []driver.Head) (n int) {
	for _, h := range claimed {
		if h.Transaction != "" {
			n++
		}
	}
	return n
}

func (j *Journal) disowned(op string, shard int, epoch interlock.Token, reply *clientv3.TxnResponse) error {
	var stored []byte
	if kvs := reply.Responses[0].GetResponseRange().Kvs; len(kvs) > 0 {
		stored = kvs[0].Value
	}
	return j.judgeEpoch(op, shard, stored, epoch)
}

// claimOps postpones the due time of an entry's transaction, or removes an entry
// that it has left, unless it has changed since the read.
func (j *Journal) claimOps(e entry, until time.Time) (when []clientv3.Cmp, then []clientv3.Op, h driver.Head) {
	when = []clientv3.Cmp{j.unchanged(e.id, e.at)}
	then = []clientv3.Op{clientv3.OpDelete(e.key)}
	if !j.current(e) {
		return when, then, h
	}
	h = e.at.Head
	h.Due, h.Claimed = time.UnixMilli(until.UnixMilli()).UTC(), true
	if later := j.dueKey(h); later != e.key {
		then = append(then, clientv3.OpPut(later, ""))
	} else {
		then = nil
	}
	return when, append(then, clientv3.OpPut(j.logKey(e.id, h.Position), logText(h, e.at.log))), h
}
