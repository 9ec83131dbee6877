package etcd

import (
	"context"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// valueWatch is one call of Watch: rounds of a read followed by a watch.
type valueWatch struct {
	v        *Values
	name     string
	each     func(driver.Value)
	reported bool            // each was called
	token    interlock.Token // of the last one
	mod      int64           // its revision
	seen     int64           // highest revision received
}

// Watch implements driver.Values with a watch of one key. It reads the value at the
// start, after etcd has compacted the revision to continue from, and every 15 s. If
// etcd does not answer it returns a Retryable error. A deletion is not reported: no
// holder of a token deletes.
func (v *Values) Watch(ctx context.Context, name string, each func(driver.Value)) error {
	const op = "watch value"
	if err := checkName(op, name); err != nil {
		return err
	}
	w := &valueWatch{v: v, name: name, each: each}
	for {
		if ctx.Err() != nil {
			return unsent(ctx, op, name)
		}
		err := w.round(ctx, op)
		switch {
		case ctx.Err() != nil:
			return unsent(ctx, op, name)
		case err != nil && interlock.Kind(err) == interlock.Uncertain:
			return problem(op, name, interlock.Retryable, err)
		case err != nil:
			return err
		}
	}
}

// round reads the value and watches it for a while. nil means that another round
// follows.
func (w *valueWatch) round(ctx context.Context, op string) error {
	kv, rev, err := w.v.read(ctx, op, w.name)
	if err != nil {
		return err
	}
	if rev < w.seen {
		w.mod = 0 // another store, with unrelated revisions
	}
	w.seen = rev
	if err := w.report(ctx, op, kv); err != nil {
		return err
	}
	rctx, cancel := context.WithTimeout(clientv3.WithRequireLeader(ctx), w.v.again)
	defer cancel()
	for reply := range w.v.client.Watch(rctx, w.v.key(w.name), clientv3.WithRev(rev+1)) {
		switch err := reply.Err(); {
		case reply.CompactRevision != 0, rctx.Err() != nil:
			return nil
		case err != nil:
			return failed(rctx, op, w.name, err)
		}
		for _, ev := range reply.Events {
			if ev.Type == mvccpb.Event_DELETE {
				continue
			}
			w.seen = ev.Kv.ModRevision
			if err := w.report(ctx, op, ev.Kv); err != nil {
				return err
			}
		}
	}
	return nil
}

// report passes on a value, unless it is the last one or an earlier one, which a
// wiped or restored store can have.
func (w *valueWatch) report(ctx context.Context, op string, kv *mvccpb.KeyValue) error {
	value, err := readValue(kv)
	if err != nil {
		return problem(op, w.name, interlock.Definite, err)
	}
	var mod int64
	if kv != nil {
		mod = kv.ModRevision
	}
	if w.reported && (value.Token < w.token || value.Token == w.token && mod <= w.mod) || ctx.Err() != nil {
		return nil
	}
	w.reported, w.token, w.mod = true, value.Token, mod
	w.each(value)
	return nil
}
