package etcd

import (
	"context"
	"strconv"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Forget removes transactions that ended long ago, by their index; see driver.Journal. Each
// call also checks 2,000 keys of payloads, for those without a transaction, and fifty entries of
// the due index, for outdated ones. The next call continues there.
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
	if err := j.sweepDue(ctx); err != nil {
		return forgotten, err
	}
	return forgotten, j.forgetPayloads(ctx, before)
}

// forget removes an ended transaction in one step, since nothing can be appended to it. An
// index entry without an ended transaction is removed alone.
func (j *Journal) forget(ctx context.Context, p located, entry string) error {
	then := []clientv3.Op{clientv3.OpDelete(entry)}
	if id := p.Transaction; !p.Ended.IsZero() {
		then = append(then, clientv3.OpDelete(j.aboutKey(id)), clientv3.OpDelete(j.logOf(id), clientv3.WithPrefix()),
			clientv3.OpDelete(j.prefix+"payload/"+id+"\x00", clientv3.WithPrefix()))
	}
	_, id, _ := strings.Cut(strings.TrimPrefix(entry, j.prefix+"ended/"), "/")
	_, err := j.do(ctx, "forget", id, []clientv3.Cmp{j.unchanged(id, p)}, then, nil)
	return err
}

// sweepDue removes left entries from the next page of the due index.
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
			when := []clientv3.Cmp{j.unchanged(e.id, e.at)}
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

// The payloads that Forget checks at once, and the pages of them in a call.
const (
	payloadPage  = 100
	payloadPages = 20
)

// forgetPayloads removes old payloads whose transaction does not exist. It checks some
// pages of keys, from where the last call stopped, and reads only payloads without a
// transaction.
func (j *Journal) forgetPayloads(ctx context.Context, before time.Time) error {
	j.mu.Lock()
	from := j.sweptPayloads
	j.mu.Unlock()
	for range payloadPages {
		orphans, next, err := j.orphans(ctx, from)
		if err != nil {
			return err
		}
		for _, o := range orphans {
			if err := j.forgetPayload(ctx, o, before); err != nil {
				return err
			}
		}
		j.mu.Lock()
		j.sweptPayloads = next
		j.mu.Unlock()
		if from = next; from == "" {
			return nil
		}
	}
	return nil
}

// orphan is the key of a payload whose transaction does not exist.
type orphan struct{ key, id string }

// orphans checks a page of payloads from a key on, and returns where to continue; empty
// means the first one.
func (j *Journal) orphans(ctx context.Context, from string) (list []orphan, next string, err error) {
	const op = "forget payloads"
	all := j.prefix + "payload/"
	reply, err := j.do(ctx, op, "all", nil, []clientv3.Op{clientv3.OpGet(max(from, all),
		clientv3.WithRange(clientv3.GetPrefixRangeEnd(all)), clientv3.WithLimit(payloadPage), clientv3.WithKeysOnly())}, nil)
	if err != nil {
		return nil, "", err
	}
	page := reply.Responses[0].GetResponseRange()
	var found []orphan
	var abouts []clientv3.Op
	for _, kv := range page.Kvs {
		o := orphan{key: string(kv.Key)}
		o.id, _, _ = strings.Cut(strings.TrimPrefix(o.key, all), "\x00")
		found = append(found, o)
		abouts = append(abouts, clientv3.OpGet(j.aboutKey(o.id), clientv3.WithCountOnly()))
	}
	if len(found) == 0 {
		return nil, "", nil
	}
	if reply, err = j.do(ctx, op, "all", nil, abouts, nil); err != nil {
		return nil, "", err
	}
	for i, o := range found {
		if reply.Responses[i].GetResponseRange().Count == 0 {
			list = append(list, o)
		}
	}
	if page.More {
		next = found[len(found)-1].key + "\x00"
	}
	return list, next, nil
}

// forgetPayload removes a payload that was stored before a time, if its transaction still
// does not exist.
func (j *Journal) forgetPayload(ctx context.Context, o orphan, before time.Time) error {
	const op = "forget payloads"
	reply, err := j.do(ctx, op, o.id, nil, []clientv3.Op{clientv3.OpGet(o.key)}, nil)
	if err != nil {
		return err
	}
	for _, kv := range reply.Responses[0].GetResponseRange().Kvs {
		kept, _, _ := strings.Cut(string(kv.Value), "\n")
		if us, err := strconv.ParseInt(kept, 10, 64); err != nil || !time.UnixMicro(us).Before(before) {
			continue
		}
		when := []clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(j.aboutKey(o.id)), "=", 0),
			clientv3.Compare(clientv3.ModRevision(o.key), "=", kv.ModRevision)}
		if _, err := j.do(ctx, op, o.id, when, []clientv3.Op{clientv3.OpDelete(o.key)}, nil); err != nil {
			return err
		}
	}
	return nil
}
