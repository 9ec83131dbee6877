package etcd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// base is added to create revisions. mod is the revision at which the key got this
// value; 0 means that no valid base is known.
type base struct {
	value int64
	mod   int64
}

// tokenCounter keeps the base of a session's tokens. The driver's mutex guards its fields.
type tokenCounter struct {
	*session
	base    base
	highest int64 // that the session has seen
}

func readBase(kv *mvccpb.KeyValue) (base, error) {
	value, err := driver.ParseInt(string(kv.Value))
	if err != nil || value < 0 || value > interlock.MaxCounter {
		return base{}, fmt.Errorf("%q is not a base of tokens: it holds %q", kv.Key, kv.Value)
	}
	return base{value: value, mod: kv.ModRevision}, nil
}

// current returns the base as last read, or raises it again if it was deleted or lowered.
func (c *tokenCounter) current(ctx context.Context) (base, error) {
	c.d.mu.Lock()
	b := c.base
	c.d.mu.Unlock()
	if b.mod != 0 {
		return b, nil
	}
	return c.raise(ctx)
}

// raise makes base + revision at least the time of the call, and the base not lower than one that
// this session has seen. It adds driver.Headroom: of many sessions that open at once one raises
// the base, and the others find it high enough.
func (c *tokenCounter) raise(ctx context.Context) (base, error) {
	floor := c.floor()
	least, err := c.d.options.Seed.Floor(c.d.options.Now())
	if err != nil {
		return base{}, refusedBase(err)
	}
	for range baseAttempts {
		b, rev, err := c.raiseOnce(ctx, least)
		if err != nil {
			return base{}, err
		}
		if err := c.proceeds(floor, rev); err != nil {
			return base{}, err
		}
		if b.mod != 0 {
			c.adopt(b)
			return b, nil
		}
	}
	return base{}, problem(opRaise, "", interlock.Retryable, errors.New("other clients kept changing it"))
}

const opRaise = "raise base of tokens"

// raiseOnce reads the base and raises it if its counter is below least. The zero
// base means that another session was faster.
func (c *tokenCounter) raiseOnce(ctx context.Context, least int64) (base, int64, error) {
	rctx, cancel := c.d.opening(ctx)
	defer cancel()
	now, rev, err := c.read(rctx)
	if err != nil {
		return base{}, 0, err
	}
	if implausible := c.d.plausible(rctx, now, rev); implausible != nil {
		return c.repair(rctx, now, rev, implausible)
	}
	want := max(least-rev, c.seen())
	if now.mod != 0 && now.value >= want {
		return now, rev, nil
	}
	if err := c.d.judgeClock(rctx, now, rev); err != nil {
		return base{}, 0, refusedBase(err)
	}
	return c.put(rctx, now, max(0, want+driver.Headroom.Microseconds()))
}

// read reads the base, and the revision at which it is valid.
func (c *tokenCounter) read(ctx context.Context) (base, int64, error) {
	var reply *clientv3.GetResponse
	err := c.d.patiently(ctx, func(ctx context.Context) (err error) {
		reply, err = c.d.client.Get(ctx, c.d.layout.base())
		return err
	})
	switch {
	case err != nil:
		return base{}, 0, failed(ctx, opRaise, "", err)
	case len(reply.Kvs) == 0:
		return base{}, reply.Header.Revision, nil
	}
	b, err := readBase(reply.Kvs[0])
	if err != nil {
		return base{}, 0, refusedBase(err)
	}
	return b, reply.Header.Revision, nil
}

// put writes a base over the one that was read, with any records.
func (c *tokenCounter) put(ctx context.Context, over base, value int64, records ...clientv3.Op) (base, int64, error) {
	key := c.d.layout.base()
	put, err := c.d.client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", over.mod)).
		Then(append(records, clientv3.OpPut(key, strconv.FormatInt(value, 10)))...).Commit()
	switch {
	case err != nil:
		return base{}, 0, failed(ctx, opRaise, "", err)
	case !put.Succeeded:
		return base{}, put.Header.Revision, nil
	}
	return base{value: value, mod: put.Header.Revision}, put.Header.Revision, nil
}

// repair lowers an implausible base to the clock, if Options ask for that, and
// records it as a forced release of driver.BaseName.
func (c *tokenCounter) repair(ctx context.Context, b base, rev int64, implausible error) (base, int64, error) {
	repair := c.d.options.Seed.Repair
	if repair == nil || c.seen() > 0 {
		return base{}, 0, refusedBase(implausible)
	}
	if err := c.d.judgeClock(ctx, base{}, rev); err != nil {
		return base{}, 0, refusedBase(err)
	}
	now := c.d.options.Now()
	value := max(0, interlock.CounterAt(now.Add(driver.Headroom))-rev)
	record, err := json.Marshal(breaking{Owner: repair.Record(b.value+rev, value+rev),
		Reason: repair.Reason, By: repair.By, At: now.UTC().Round(0)})
	if err != nil {
		return base{}, 0, refusedBase(err)
	}
	return c.put(ctx, b, value, clientv3.OpPut(c.d.layout.broken(driver.BaseName, rev), string(record)))
}

func refusedBase(err error) error {
	return problem(opRaise, "", interlock.Definite, err)
}

// seen returns the highest base that this session has seen.
func (c *tokenCounter) seen() int64 {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	return c.highest
}

// adopt stores b if it is newer. It ignores a lower base, whose tokens would be below granted
// ones, and an implausible one: the next grant reads that and checks it by the server's clock.
func (c *tokenCounter) adopt(b base) {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	c.adoptLocked(b)
}

func (c *tokenCounter) adoptLocked(b base) {
	switch {
	case b.mod < c.base.mod:
	case b.value < c.highest, driver.Plausible(b.value+b.mod, c.d.options.Now()) != nil:
		c.base = base{}
	default:
		c.base, c.highest = b, b.value
	}
}

// observe stores the base from a read; none means that it was deleted. The caller
// holds the driver's mutex.
func (c *tokenCounter) observe(kvs []*mvccpb.KeyValue) {
	if len(kvs) == 0 {
		c.base = base{}
		return
	}
	b, err := readBase(kvs[0])
	if err != nil {
		c.base = base{} // the next raise reports the error
		return
	}
	c.adoptLocked(b)
}

// Token returns the token of the contender with this create revision. It is for
// writers in the same namespace that hold the lock through another client and use
// the same guard. It reads the base as of that revision. Once etcd has compacted
// the revision, the error is Definite.
func (d *Driver) Token(ctx context.Context, createRevision int64) (interlock.Token, error) {
	const op = "convert create revision"
	reply, err := d.keys.get(ctx, op, "", d.layout.base(), clientv3.WithRev(createRevision))
	if err != nil {
		return 0, err
	}
	if len(reply.Kvs) == 0 {
		return 0, problem(op, "", interlock.Definite, fmt.Errorf("the namespace had no base at revision %d", createRevision))
	}
	b, err := readBase(reply.Kvs[0])
	if err != nil {
		return 0, problem(op, "", interlock.Definite, err)
	}
	return interlock.NewToken(b.value+createRevision, 0)
}

// Revision returns the create revision of the contender that was granted token. It
// reads the bases of the namespace, newest first, one request each, until one was
// valid at the revision that it yields. An error of kind Definite means that there
// is none, or that etcd has compacted it.
func (d *Driver) Revision(ctx context.Context, token interlock.Token) (int64, error) {
	const op = "convert token"
	var opts []clientv3.OpOption
	for {
		reply, err := d.keys.get(ctx, op, "", d.layout.base(), opts...)
		if err != nil {
			return 0, err
		}
		if len(reply.Kvs) == 0 {
			return 0, problem(op, "", interlock.Definite, fmt.Errorf("no base of this namespace yields %v", token))
		}
		b, err := readBase(reply.Kvs[0])
		if err != nil {
			return 0, problem(op, "", interlock.Definite, err)
		}
		if rev := token.Counter() - b.value; rev > b.mod {
			return rev, nil
		}
		opts = []clientv3.OpOption{clientv3.WithRev(b.mod - 1)}
	}
}
