package etcd

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/interlock-dev/interlock"
)

// base is what is added to create revisions. mod is the revision at which the
// key got this value; 0 means that no valid base is known.
type base struct {
	value int64
	mod   int64
}

func readBase(kv *mvccpb.KeyValue) (base, error) {
	value, err := strconv.ParseInt(string(kv.Value), 10, 64)
	if err != nil || value < 0 || value > interlock.MaxCounter {
		return base{}, fmt.Errorf("%q is not a base of tokens: it holds %q", kv.Key, kv.Value)
	}
	return base{value: value, mod: kv.ModRevision}, nil
}

// currentBase is the base as last heard, or raised anew if it was deleted or
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

// raiseBase makes sure that base + revision is at least the present time, and
// not below a base that this session has seen.
func (s *session) raiseBase(ctx context.Context) (base, error) {
	floor := s.floor()
	for range baseAttempts {
		b, rev, err := s.raiseOnce(ctx)
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
	return base{}, &interlock.Error{Op: "raise base of tokens", Driver: driverName, Kind: interlock.Retryable,
		Err: errors.New("others kept changing it")}
}

// raiseOnce reads the base and raises it if it is behind. The zero base means
// that another session was faster.
func (s *session) raiseOnce(ctx context.Context) (base, int64, error) {
	const op = "raise base of tokens"
	key := s.d.layout.base()
	rctx, cancel := s.d.bounded(ctx)
	defer cancel()
	reply, err := s.d.client.Get(rctx, key)
	if err != nil {
		return base{}, 0, failed(rctx, op, "", err)
	}
	var now base
	if len(reply.Kvs) > 0 {
		if now, err = readBase(reply.Kvs[0]); err != nil {
			return base{}, 0, &interlock.Error{Op: op, Driver: driverName, Kind: interlock.Definite, Err: err}
		}
	}
	want := s.wantedBase(reply.Header.Revision)
	if now.mod != 0 && now.value >= want {
		return now, reply.Header.Revision, nil
	}
	put, err := s.d.client.Txn(rctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", now.mod)).
		Then(clientv3.OpPut(key, strconv.FormatInt(want, 10))).Commit()
	if err != nil {
		return base{}, 0, failed(rctx, op, "", err)
	}
	if !put.Succeeded {
		return base{}, put.Header.Revision, nil
	}
	return base{value: want, mod: put.Header.Revision}, put.Header.Revision, nil
}

func (s *session) wantedBase(rev int64) int64 {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	return max(0, s.highestBase, interlock.CounterAt(s.d.options.Now())-rev)
}

// adoptBase takes b if it is news. A base that falls is not believed: what was
// granted above it would be overtaken only later.
func (s *session) adoptBase(b base) {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	s.adoptBaseLocked(b)
}

func (s *session) adoptBaseLocked(b base) {
	switch {
	case b.mod < s.base.mod:
	case b.value < s.highestBase:
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
