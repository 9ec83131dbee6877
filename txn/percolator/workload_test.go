package percolator_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/virtual"
	"github.com/interlock-dev/interlock/txn/percolator"
	"github.com/interlock-dev/interlock/txn/percolator/percolatortest"
	"github.com/interlock-dev/interlock/txn/timestamp"
)

// workload returns a workload over three stores in memory. It needs virtual time.
func workload(t *testing.T, seed uint64, rounds int, o *percolator.Options) percolatortest.Workload {
	t.Helper()
	var mu sync.Mutex
	random := rand.New(rand.NewPCG(seed, 7))
	draw := func(n int) int {
		mu.Lock()
		defer mu.Unlock()
		return random.IntN(n)
	}
	x, y, rest, clock := memory.NewKeyValues(), memory.NewKeyValues(), memory.NewKeyValues(), memory.NewKeyValues()
	return percolatortest.Workload{
		Processes: 6,
		Keys:      []string{"x/1", "x/2", "y/1", "y/2", "1", "2"},
		Open: func(ctx context.Context, _ int) (*percolator.DB, error) {
			oracle, err := timestamp.NewOracle(clock, "oracle", nil)
			if err != nil {
				return nil, err
			}
			crashed := new(atomic.Bool)
			return percolator.Open(ctx, oracle, percolator.Stores{"x/": percolatortest.Path{KeyValues: x, Draw: draw, Crashed: crashed},
				"y/": percolatortest.Path{KeyValues: y, Draw: draw, Crashed: crashed},
				"":   percolatortest.Path{KeyValues: rest, Draw: draw, Crashed: crashed}}, o)
		},
		More: func(n, _ int) bool { return n < rounds },
		Draw: draw,
	}
}

// together returns a workload of one process with many clients. It leads the oracle, which is in the
// store of all keys, and commits in one phase, unless another process just took over. keys
// counts what these commits write.
func together(t *testing.T, seed uint64, rounds int, o *percolator.Options, keys *atomic.Int64) percolatortest.Workload {
	t.Helper()
	w := workload(t, seed, rounds, o)
	store := memory.NewKeyValues()
	way := &percolatortest.Path{KeyValues: store, Draw: w.Draw, OnePhase: keys}
	oracle, err := timestamp.NewOracle(way, "oracle", nil)
	testbed.OK(t, err)
	db, err := percolator.Open(t.Context(), oracle, percolator.Stores{"": way}, o)
	for err != nil {
		db, err = percolator.Open(t.Context(), oracle, percolator.Stores{"": way}, o)
	}
	w.Open = func(context.Context, int) (*percolator.DB, error) { return db, nil }
	w.More = func(n, _ int) bool {
		if w.Draw(3000) == 0 {
			other, err := timestamp.NewOracle(store, "oracle", nil)
			testbed.OK(t, err)
			_, err = other.Next(t.Context())
			testbed.OK(t, err)
		}
		return n < rounds
	}
	return w
}

// TestAppends: lists under crashes and lost requests, with the cycle checker.
func TestAppends(t *testing.T) {
	done := 0
	for seed := range uint64(12) {
		serializable := seed%2 == 1
		virtual.Test(t, func(t *testing.T) {
			n, err := percolatortest.Appends(t.Context(), workload(t, seed, 40, &percolator.Options{Serializable: serializable}), serializable)
			if err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			done += n
		})
	}
	if done < 1200 {
		t.Errorf("only %d transactions were committed", done)
	}
}

// TestOnePhase: lists and transfers of one process, most of them in one phase.
func TestOnePhase(t *testing.T) {
	done, keys := 0, new(atomic.Int64)
	for seed := range uint64(2) {
		serializable := seed%2 == 1
		o := &percolator.Options{Serializable: serializable}
		virtual.Test(t, func(t *testing.T) {
			n, err := percolatortest.Appends(t.Context(), together(t, seed, 200, o, keys), serializable)
			done += n
			if err == nil {
				n, err = percolatortest.Bank(t.Context(), together(t, seed, 200, o, keys))
				done += n
			}
			if err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
		})
	}
	if t.Logf("%d transactions, %d keys written in one phase", done, keys.Load()); done < 4000 || keys.Load() < 2000 {
		t.Error("these are few")
	}
}

// TestBank: transfers between three stores, with concurrent audits in snapshots.
func TestBank(t *testing.T) {
	for seed := range uint64(4) {
		virtual.Test(t, func(t *testing.T) {
			done, err := percolatortest.Bank(t.Context(), workload(t, seed, 40, nil))
			if err != nil || done < 150 {
				t.Errorf("seed %d: %d transactions: %v", seed, done, err)
			}
		})
	}
}

// TestWriteSkew: it happens with snapshot isolation, and not with Serializable or
// ForUpdate.
func TestWriteSkew(t *testing.T) {
	locked := func(ctx context.Context, tx *percolator.Tx, key string) (int, error) {
		if _, _, err := tx.ForUpdate(ctx, key); err != nil {
			return 0, err
		}
		return percolatortest.Number(ctx, tx, key)
	}
	for _, c := range []struct {
		name string
		o    *percolator.Options
		read func(context.Context, *percolator.Tx, string) (int, error)
		want int
	}{
		{"snapshot isolation", nil, percolatortest.Number, 0},
		{"serializable", &percolator.Options{Serializable: true}, percolatortest.Number, 1},
		{"ForUpdate", nil, locked, 1},
	} {
		virtual.Test(t, func(t *testing.T) {
			store := memory.NewKeyValues()
			oracle, err := timestamp.NewOracle(store, "oracle", nil)
			testbed.OK(t, err)
			db, err := percolator.Open(t.Context(), oracle, percolator.Stores{"x/": store, "y/": memory.NewKeyValues()}, c.o)
			testbed.OK(t, err)
			left, err := percolatortest.WriteSkew(t.Context(), db, [2]string{"x/a", "y/b"}, c.read)
			if err != nil || left != c.want {
				t.Errorf("%s: %d on call, want %d: %v", c.name, left, c.want, err)
			}
			testbed.OK(t, db.Close(t.Context()))
		})
	}
}
