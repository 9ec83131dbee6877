package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/guard/idempotency"
)

// process is a process that dies at some operation, or pauses with all its goroutines at one, for
// longer than a lease.
type process struct {
	driver.Beginner[tx]
	dies, stalls int // at the operation of that number; 0 means never
	stillness    time.Duration
	commits      bool // the running operation commits when it dies

	gate sync.RWMutex
	mu   sync.Mutex
	ops  int
}

var errDead = &interlock.Error{Op: "live", Kind: interlock.Definite, Err: errors.New("the process is dead")}

// pass runs before each operation.
func (p *process) pass() error {
	p.gate.RLock()
	//lint:ignore SA2001 it waits for one that stands still
	p.gate.RUnlock()
	p.mu.Lock()
	p.ops++
	n := p.ops
	p.mu.Unlock()
	if n == p.stalls {
		p.gate.Lock()
		time.Sleep(p.stillness)
		p.gate.Unlock()
	}
	if p.dies > 0 && n >= p.dies {
		return errDead
	}
	return nil
}

func (p *process) Begin(ctx context.Context) (driver.Tx[tx], error) {
	if err := p.pass(); err != nil {
		return nil, err
	}
	t, err := p.Beginner.Begin(ctx)
	return processTx{t, p}, err
}

type processTx struct {
	driver.Tx[tx]
	p *process
}

func (t processTx) Native() tx { return t }

func (t processTx) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	if err := t.p.pass(); err != nil {
		return 0, err
	}
	return t.Tx.Exec(ctx, query, args...)
}

func (t processTx) Query(ctx context.Context, query string, args []any, each func(func(...any) error) error) error {
	if err := t.p.pass(); err != nil {
		return err
	}
	return t.Tx.Query(ctx, query, args, each)
}

func (t processTx) Commit(ctx context.Context) error {
	if err := t.p.pass(); err != nil {
		if t.p.commits {
			_ = t.Tx.Commit(ctx)
		}
		return errors.Join(err, t.Tx.Rollback(ctx))
	}
	return t.Tx.Commit(ctx)
}

func (t processTx) Bound(ctx context.Context, idle, statement time.Duration) error {
	if err := t.p.pass(); err != nil {
		return err
	}
	return t.Tx.Bound(ctx, idle, statement)
}

// testAnyInterleaving: retries overlap, leases expire under live attempts, and processes die or
// pause at any operation. Each phase of each request takes effect once, and all answers are the
// same.
func testAnyInterleaving(t *testing.T, w world) {
	const keys, retries, lease = 6, 4, 120 * time.Millisecond
	var mu sync.Mutex
	answers := map[string]map[string]int{}
	attempts := 0
	var running sync.WaitGroup
	for k := range keys {
		key := fmt.Sprint("k", k)
		answers[key] = map[string]int{}
		for lane := range retries {
			chance := rand.New(rand.NewPCG(uint64(k), uint64(lane)))
			running.Go(func() {
				for n := 1; ; n++ {
					body, ok := w.try(t, chance, key, lease, n > 8)
					mu.Lock()
					if attempts++; ok {
						answers[key][body]++
					}
					mu.Unlock()
					if ok || t.Failed() {
						return
					}
				}
			})
		}
	}
	running.Wait()
	t.Logf("%d tries", attempts)
	for key, all := range answers {
		want := strings.ReplaceAll(w.effects(t, key), " by ", " of attempt ")
		if len(all) != 1 || all[want] != retries || strings.Count(want, "attempt") != 3 {
			t.Errorf("%s: effects %q, answers %v", key, want, all)
		}
	}
}

// try makes one attempt in its own process.
func (w world) try(t *testing.T, chance *rand.Rand, key string, lease time.Duration, healthy bool) (body string, ok bool) {
	p := &process{Beginner: w.DB, stillness: lease * 2, commits: chance.IntN(2) == 0}
	switch fate := chance.IntN(10); {
	case healthy:
	case fate < 5:
		p.dies = 1 + chance.IntN(28)
	case fate < 9:
		p.stalls = 1 + chance.IntN(28)
	}
	records := idempotency.NewSQL[tx](p, idempotency.Table{})
	call := order(key)
	call.Wait = time.Duration(chance.IntN(200)) * time.Millisecond
	got, err := open(t, records, &idempotency.Options{Lease: lease}).Do(t.Context(), call, func(ctx context.Context) (idempotency.Response, error) {
		var said []string
		for _, name := range []string{"a", "b", "c"} {
			// Half of them do not check whether the lease lasts.
			if chance.IntN(2) == 0 {
				ctx = context.WithoutCancel(ctx)
			}
			s, err := phase(ctx, records, name)
			if err != nil {
				return idempotency.Response{}, err
			}
			said = append(said, s)
		}
		return answer(200, strings.Join(said, ", ")), nil
	})
	return string(got.Body), err == nil
}
