package etcd

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
	"github.com/interlock-dev/interlock/txn/twopc"
)

// station is a process that runs transfers over two shards and finishes abandoned
// ones, with all its access to etcd over one path.
type station struct {
	engine *twopc.Engine
	banks  []twopc.Definition[*ShardBranch]
	path   *testbed.Proxy
}

func newStation(t *testing.T, server *testbed.Server) *station {
	t.Helper()
	path := testbed.NewProxy(t, server.Addr())
	client := dial(t, path.Addr())
	j, err := journal.New(NewJournal(client, "station/"), &journal.Options{Shards: 4, Patience: time.Second})
	testbed.OK(t, err)
	t.Cleanup(func() { j.Close() })
	c, err := coordinator.New(j, &coordinator.Options{Poll: 100 * time.Millisecond, Recheck: time.Second})
	testbed.OK(t, err)
	s := &station{path: path}
	for _, name := range []string{"a", "b"} {
		s.banks = append(s.banks, twopc.Define(name, NewShard(client, "bank/"+name+"/")))
	}
	s.engine, err = twopc.New(c, &twopc.Options{Prepare: time.Second, Timeout: time.Second, Patience: 2 * time.Second, Scan: 200 * time.Millisecond}, s.banks[0], s.banks[1])
	testbed.OK(t, err)
	locks, err := lock.NewFenced(open(t, client, &Options{Prefix: "locks/", TTL: 2 * time.Second}), nil)
	testbed.OK(t, err)
	ctx, stop := context.WithCancel(context.Background())
	var owned sync.WaitGroup
	owned.Go(func() { _ = s.engine.Watch(ctx) })
	owned.Go(func() {
		for ctx.Err() == nil {
			_ = locks.Do(ctx, "coordinator", func(ctx context.Context, claim interlock.Claim) error { return c.Run(ctx, claim) })
		}
	})
	t.Cleanup(func() { stop(); owned.Wait() })
	return s
}

func (s *station) transfer(ctx context.Context, id string, from int, account string, amount int64) error {
	return s.engine.Run(ctx, id, func(ctx context.Context, t *twopc.T) error {
		for bank, n := range map[int]int64{from: -amount, 1 - from: amount} {
			b, err := s.banks[bank].Join(ctx, t)
			if err == nil {
				err = b.Add(ctx, account, n)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// TestAnyInstanceFinishes transfers of an instance that is cut off from etcd:
// decisions and branches are all in etcd, so nothing waits for it. Reported commits
// are committed, and reported aborts are not.
func TestAnyInstanceFinishes(t *testing.T) {
	t.Parallel()
	server := serverFor(t)
	client := dial(t, server.Addr())
	accounts := []string{"x", "y", "z", "u", "v", "w"}
	const money = 2 * 6 * 1000
	for _, name := range []string{"a", "b"} {
		mustDo(t, NewShard(client, "bank/"+name+"/"), "seed", add(t, 1000, accounts...))
	}
	dying, other := newStation(t, server), newStation(t, server)
	var mu sync.Mutex
	told := map[string]error{}
	var workers sync.WaitGroup
	stopped := make(chan struct{})
	for w := range 3 {
		workers.Go(func() {
			random := rand.New(rand.NewPCG(uint64(w), 21))
			for i := 0; ; i++ {
				select {
				case <-stopped:
					return
				default:
				}
				id := fmt.Sprintf("transfer/%d/%d", w, i)
				err := dying.transfer(bounded(t), id, random.IntN(2), accounts[random.IntN(len(accounts))], 1+random.Int64N(20))
				mu.Lock()
				told[id] = err
				mu.Unlock()
			}
		})
	}
	count := func() (committed int) {
		mu.Lock()
		defer mu.Unlock()
		for _, err := range told {
			if err == nil {
				committed++
			}
		}
		return committed
	}
	testbed.Eventually(t, "transfers are under way", patience, func() bool { return count() >= 30 })
	dying.path.Cut()
	close(stopped)
	testbed.Eventually(t, "the other one has finished all", 2*patience, func() bool {
		books, err := openBooks(bounded(t), client, "bank/")
		return err == nil && len(books.doubts) == 0 && len(books.unowned) == 0
	})
	workers.Wait()
	dying.path.Heal()
	// Requests on their way when the path healed end too.
	testbed.Eventually(t, "nothing is in doubt", 2*patience, func() bool {
		books := readBooks(t, client, "bank/")
		testbed.OK(t, books.sound(money))
		return len(books.doubts) == 0
	})
	uncertain := 0
	for id, err := range told {
		outcome, looked := other.engine.Look(bounded(t), id)
		committed := looked == nil && outcome.Decision == twopc.Commit
		switch {
		case looked != nil && !errors.Is(looked, twopc.ErrNone):
			t.Errorf("%s: %v", id, looked)
		case err == nil && !committed, errors.Is(err, twopc.ErrAborted) && committed:
			t.Errorf("%s: reported %v, and it is committed: %v", id, err, committed)
		case err != nil && interlock.Kind(err) == interlock.Uncertain:
			uncertain++
		}
	}
	t.Logf("%d of %d committed, %d uncertain", count(), len(told), uncertain)
}
