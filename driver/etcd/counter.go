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

// base is what is added to create revisions. mod is the revision at which the
// key got this value; 0 means that no valid base is known.
type base struct {
	value int64
	mod   int64
}

func readBase(kv *mvccpb.KeyValue) (base, error) {
	value, err := driver.ParseInt(string(kv.Value))
	if err != nil || value < 0 || value > interlock.MaxCounter {
		return base{}, fmt.Errorf("%q is not a base of tokens: it holds %q", kv.Key, kv.Value)
	}
	return base{value: value, mod: kv.ModRevision}, nil
}

// currentBase is the base as last heard, or raised again if it was deleted or
// lowered.
func (s *session) currentBase(ctx context.Context) (base, error) {
	s.d.mu.Lock()
	b := s.base
	s.d.mu.Unlock()
	if b.mod != 0 {
		return b, nil
	}
	return s.raiseBase(ctx)
}

// raiseBase makes sure that base + revision is at least the time at which it is
// called, and not below a base that this session has seen. The process that raises it
// raises it by driver.Headroom more, so that of many who open at once one raises
// it, and the others find it high enough.
func (s *session) raiseBase(ctx context.Context) (base, error) {
	floor := s.floor()
	least, err := s.d.options.Seed.Floor(s.d.options.Now())
	if err != nil {
		return base{}, refusedBase(err)
	}
	for range baseAttempts {
		b, rev, err := s.raiseOnce(ctx, least)
		if err != nil {
			return base{}, err
		}
		if err := s.proceeds(floor, rev); err != nil {
			return base{}, err
		}
		if b.mod != 0 {
			s.adoptBase(b)
			return b, nil
		}
	}
	return base{}, &interlock.Error{Op: opRaise, Driver: driverName, Kind: interlock.Retryable,
		Err: errors.New("others kept changing it")}
}

const opRaise = "raise base of tokens"

// raiseOnce reads the base and raises it if its counter is below least. The zero
// base means that another session was faster.
func (s *session) raiseOnce(ctx context.Context, least int64) (base, int64, error) {
	rctx, cancel := s.d.opening(ctx)
	defer cancel()
	now, rev, err := s.readBase(rctx)
	if err != nil {
		return base{}, 0, err
	}
	if implausible := s.d.plausible(rctx, now, rev); implausible != nil {
		return s.repairBase(rctx, now, rev, implausible)
	}
	want := max(least-rev, s.seenBase())
	if now.mod != 0 && now.value >= want {
		return now, rev, nil
	}
	if err := s.d.judgeClock(rctx, now, rev); err != nil {
		return base{}, 0, refusedBase(err)
	}
	return s.putBase(rctx, now, max(0, want+driver.Headroom.Microseconds()))
}

// readBase reads the base, and the revision at which it is valid.
func (s *session) readBase(ctx context.Context) (base, int64, error) {
	reply, err := s.d.client.Get(ctx, s.d.layout.base())
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

// putBase writes a base over the one that was read, with records if there are any.
func (s *session) putBase(ctx context.Context, over base, value int64, records ...clientv3.Op) (base, int64, error) {
	key := s.d.layout.base()
	put, err := s.d.client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", over.mod)).
		Then(append(records, clientv3.OpPut(key, strconv.FormatInt(value, 10)))...).Commit()
	switch {
	case err != nil:
		return base{}, 0, failed(ctx, opRaise, "", err)
	case !put.Succeeded:
		return base{}, put.Header.Revision, nil
	}
	return base{value: value, mod: put.Header.Revision}, put.Header.Revision, nil
}

// repairBase lowers an implausible base to the clock, if Options ask for that, and
// records it as a forced release of driver.BaseName.
func (s *session) repairBase(ctx context.Context, b base, rev int64, implausible error) (base, int64, error) {
	repair := s.d.options.Seed.Repair
	if repair == nil || s.seenBase() > 0 {
		return base{}, 0, refusedBase(implausible)
	}
	if err := s.d.judgeClock(ctx, base{}, rev); err != nil {
		return base{}, 0, refusedBase(err)
	}
	now := s.d.options.Now()
	value := max(0, interlock.CounterAt(now.Add(driver.Headroom))-rev)
	record, err := json.Marshal(breaking{Owner: repair.Record(b.value+rev, value+rev),
		Reason: repair.Reason, By: repair.By, At: now.UTC().Round(0)})
	if err != nil {
		return base{}, 0, refusedBase(err)
	}
	return s.putBase(ctx, b, value, clientv3.OpPut(s.d.layout.broken(driver.BaseName, rev), string(record)))
}

func refusedBase(err error) error {
	return &interlock.Error{Op: opRaise, Driver: driverName, Kind: interlock.Definite, Err: err}
}

// seenBase is the highest base that this session has seen.
func (s *session) seenBase() int64 {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	return s.highestBase
}

// adoptBase takes b if it is news. A base that falls is not believed: what was
// granted above it would be overtaken only later. Nor is an implausible one: the
// next grant reads it and judges it by the server's clock.
func (s *session) adoptBase(b base) {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	s.adoptBaseLocked(b)
}

func (s *session) adoptBaseLocked(b base) {
	switch {
	case b.mod < s.base.mod:
	case b.value < s.highestBase, driver.Plausible(b.value+b.mod, s.d.options.Now()) != nil:
		s.base = base{}
	default:
		s.base, s.highestBase = b, b.value
	}
}

// seeBase takes the base from a read; none means that somebody deleted it. The
// driver's mutex is held.
func (s *session) seeBase(kvs []*mvccpb.KeyValue) {
	if len(kvs) == 0 {
		s.base = base{}
		return
	}
	b, err := readBase(kvs[0])
	if err != nil {
		s.base = base{} // the next raise reports what is wrong with it
		return
	}
	s.adoptBaseLocked(b)
}

// Token is the token of the contender with this create revision, for writers
// in the same namespace that took their place in the line with another client
// and want to pass the same guard. It reads the base as it was at that
// revision, so it is to be asked soon: once etcd has compacted the revision the
// answer is an error of kind Definite.
func (d *Driver) Token(ctx context.Context, createRevision int64) (interlock.Token, error) {
	rctx, cancel := d.bounded(ctx)
	defer cancel()
	reply, err := d.client.Get(rctx, d.layout.base(), clientv3.WithRev(createRevision))
	if err != nil {
		return 0, failed(rctx, "convert create revision", "", err)
	}
	if len(reply.Kvs) == 0 {
		return 0, &interlock.Error{Op: "convert create revision", Driver: driverName, Kind: interlock.Definite,
			Err: fmt.Errorf("the namespace had no base at revision %d", createRevision)}
	}
	b, err := readBase(reply.Kvs[0])
	if err != nil {
		return 0, &interlock.Error{Op: "convert create revision", Driver: driverName, Kind: interlock.Definite, Err: err}
	}
	return interlock.NewToken(b.value+createRevision, 0)
}

// Revision is the create revision of the contender that got token. It looks
// through the bases of the namespace, newest first, one request each, for the
// one that was valid at the revision it yields; an error of kind Definite says
// that there is none, or that etcd has compacted it.
func (d *Driver) Revision(ctx context.Context, token interlock.Token) (int64, error) {
	const op = "convert token"
	var opts []clientv3.OpOption
	for {
		rctx, cancel := d.bounded(ctx)
		reply, err := d.client.Get(rctx, d.layout.base(), opts...)
		if err != nil {
			defer cancel()
			return 0, failed(rctx, op, "", err)
		}
		cancel()
		if len(reply.Kvs) == 0 {
			return 0, &interlock.Error{Op: op, Driver: driverName, Kind: interlock.Definite,
				Err: fmt.Errorf("no base of this namespace yields %v", token)}
		}
		b, err := readBase(reply.Kvs[0])
		if err != nil {
			return 0, &interlock.Error{Op: op, Driver: driverName, Kind: interlock.Definite, Err: err}
		}
		if rev := token.Counter() - b.value; rev > b.mod {
			return rev, nil
		}
		opts = []clientv3.OpOption{clientv3.WithRev(b.mod - 1)}
	}
}
