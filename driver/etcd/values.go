package etcd

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// lookAgain is how often a watched value is read: only a read shows a dead connection or a
// replaced store.
const lookAgain = 15 * time.Second

// Values keeps small values with the tokens of their writers: one transaction in
// one request checks the token and writes. It implements driver.Values.
//
// A value is one key, which begins with the token in a fixed number of digits, so
// that etcd compares tokens by comparing values. etcd has no clock in its
// transactions: the caller's clock decides what is too far in the future, and when
// a value was written. Source is stored as UTF-8.
type Values struct {
	keyspace
	now   func() time.Time
	again time.Duration // lookAgain
}

var _ driver.Values = (*Values)(nil)

// NewValues keeps values under prefix, in the keys "interlock.value:" + name, which are in no
// lock's queue. Names are escaped like those of locks. It does not block, and the client must
// outlive the values.
func NewValues(client *clientv3.Client, prefix string) *Values {
	return &Values{keyspace{client: client, prefix: prefix}, time.Now, lookAgain}
}

func (v *Values) key(name string) string {
	return v.prefix + reserved + "value:" + escaper.Replace(name)
}

// heading is the JSON of a value between token and data, on one line.
type heading struct {
	Source  string    `json:"source"`
	Written time.Time `json:"written"`
}

func valueText(v driver.Value, now time.Time) string {
	h, err := json.Marshal(heading{Source: v.Source, Written: now.UTC()})
	if err != nil {
		panic("etcd: value: " + err.Error()) // a string and a recent time always marshal
	}
	return driver.FormatPadded(int64(v.Token)) + " " + string(h) + "\n" + string(v.Data)
}

// readValue parses the output of valueText; nil means no value.
func readValue(kv *mvccpb.KeyValue) (driver.Value, error) {
	if kv == nil {
		return driver.Value{}, nil
	}
	head, data, ok := bytes.Cut(kv.Value, []byte("\n"))
	number := head[:min(driver.PaddedLength, len(head))]
	token, err := driver.ParsePadded(string(number))
	if !ok || err != nil || !interlock.Token(token).Valid() {
		return driver.Value{}, fmt.Errorf("key %q is not a value with a token: it begins with %.40q", kv.Key, head)
	}
	var h heading
	// informational: a value without a heading is valid
	_ = json.Unmarshal(head[len(number):], &h)
	return driver.Value{Data: data, Token: interlock.Token(token), Source: h.Source, Written: h.Written}, nil
}

// Put implements driver.Values with one request.
func (v *Values) Put(ctx context.Context, name string, value driver.Value) error {
	const op = "put value"
	now := v.now()
	if err := checkValue(ctx, op, name, value, now); err != nil {
		return err
	}
	key := v.key(name)
	put := []clientv3.Op{clientv3.OpPut(key, valueText(value, now))}
	replace := clientv3.OpTxn(
		[]clientv3.Cmp{clientv3.Compare(clientv3.Value(key), "<", driver.FormatPadded(int64(value.Token)+1))},
		put,
		[]clientv3.Op{clientv3.OpGet(key)})
	reply, err := v.do(ctx, op, name, []clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(key), "=", 0)}, put, []clientv3.Op{replace})
	if err != nil {
		return err
	}
	if reply.Succeeded || reply.Responses[0].GetResponseTxn().Succeeded {
		return nil
	}
	stored, err := readValue(reply.Responses[0].GetResponseTxn().Responses[0].GetResponseRange().Kvs[0])
	if err != nil {
		return problem(op, name, interlock.Definite, err)
	}
	return problem(op, name, interlock.Definite, &interlock.StaleTokenError{Resource: name, Seen: stored.Token, Got: value.Token})
}

// checkValue rejects values that the store never accepts.
func checkValue(ctx context.Context, op, name string, value driver.Value, now time.Time) error {
	if err := checkName(op, name); err != nil {
		return err
	}
	bug := func(format string, args ...any) error {
		return problem(op, name, interlock.Bug, fmt.Errorf(format, args...))
	}
	switch {
	case !value.Token.Valid():
		return bug("%d is not a token", int64(value.Token))
	case len(value.Data) > driver.MaxValue:
		return bug("it has %d bytes, at most %d are allowed", len(value.Data), driver.MaxValue)
	case ctx.Err() != nil:
		return unsent(ctx, op, name)
	}
	return plausible(op, name, value.Token, now)
}

// Get implements driver.Values. Written is by the writer's clock.
func (v *Values) Get(ctx context.Context, name string) (driver.Value, error) {
	const op = "get value"
	if err := checkName(op, name); err != nil {
		return driver.Value{}, err
	}
	kv, _, err := v.read(ctx, op, name)
	if err != nil {
		return driver.Value{}, err
	}
	value, err := readValue(kv)
	if err != nil {
		err = problem(op, name, interlock.Definite, err)
	}
	return value, err
}

// read returns the key of a value, nil if there is none, and the revision of the
// store.
func (v *Values) read(ctx context.Context, op, name string) (*mvccpb.KeyValue, int64, error) {
	reply, err := v.get(ctx, op, name, v.key(name))
	if err != nil {
		return nil, 0, err
	}
	if len(reply.Kvs) == 0 {
		return nil, reply.Header.Revision, nil
	}
	return reply.Kvs[0], reply.Header.Revision, nil
}

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
		if err := w.round(ctx, op); err != nil && ctx.Err() == nil {
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
			return harmless(failed(rctx, op, w.name, err))
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
