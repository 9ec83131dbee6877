package barrier_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/txn/barrier"
	"github.com/interlock-dev/interlock/txn/branch"
)

// answered is one call of a race and its answer.
type answered struct {
	op   branch.Operation
	word string
}

// outcomes counts how races ended.
type outcomes struct{ blocked, undone, sold, retried atomic.Int64 }

// errBroken is an error with an unknown outcome: the function's effects are rolled back.
var errBroken = errors.New("the connection to the printer broke")

// shaky returns a form whose functions sometimes fail after their effect.
func shaky(f form, random *rand.Rand, mu *sync.Mutex) form {
	fails := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return random.IntN(3) == 0
	}
	broken := func(ctx context.Context, db driver.SQL) error {
		if err := effect(ctx, db, branch.From(ctx).Branch, "broken"); err != nil {
			return err
		}
		return errBroken
	}
	return form{
		name: "shaky",
		try: func(ctx context.Context, w world, id string) (Hold, error) {
			if fails() {
				return barrier.Do(ctx, w.DB, w.table, seat, func(ctx context.Context, tx driver.SQL) (Hold, error) { return Hold{}, broken(ctx, tx) })
			}
			return f.try(ctx, w, id)
		},
		confirm: f.confirm,
		cancel: func(ctx context.Context, w world) error {
			if fails() {
				return barrier.Undo(ctx, w.DB, w.table, func(ctx context.Context, tx driver.SQL, _ *Hold) error { return broken(ctx, tx) })
			}
			return f.cancel(ctx, w)
		},
	}
}

// testRaces: all five calls of many branches run concurrently, on every client. Each effect exists
// once, and answers contradict neither each other nor the effects.
func testRaces(t *testing.T, w world) {
	var o outcomes
	for _, f := range []form{owned, lent, outside, {name: "shaky"}} {
		for seed := range uint64(12) {
			name := fmt.Sprintf("race_%s_%d", f.name, seed)
			random, mu := rand.New(rand.NewPCG(seed, 1)), &sync.Mutex{}
			g := f
			if f.name == "shaky" {
				g = shaky(owned, random, mu)
			}
			race(t, w, g, name, random.Perm(len(multiset)), &o)
		}
	}
	t.Logf("%d blocked, %d undone, %d sold; %d calls were to be made again",
		o.blocked.Load(), o.undone.Load(), o.sold.Load(), o.retried.Load())
}

// race makes all calls concurrently, started in an order, and checks the result.
func race(t *testing.T, w world, f form, name string, order []int, o *outcomes) {
	t.Helper()
	answers := make([]answered, len(order))
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i, k := range order {
		wg.Go(func() {
			<-start
			answers[i] = answered{multiset[k], f.until(t, w, name, multiset[k], fmt.Sprintf("h%d", i), o)}
		})
	}
	close(start)
	wg.Wait()
	if t.Failed() {
		return
	}
	for _, op := range []branch.Operation{branch.Try, branch.Confirm, branch.Cancel} {
		answers = append(answers, answered{op, f.until(t, w, name, op, "late", o)})
	}
	effects := w.effects(t, name)
	switch {
	case effects["hold"] == 0:
		o.blocked.Add(1)
	case len(effects) == 2 && answers[5].word == "cancelled":
		o.undone.Add(1)
	default:
		o.sold.Add(1)
	}
	for _, complaint := range judge(answers, effects) {
		t.Errorf("%s: %s: %v", name, complaint, answers)
	}
}

// until repeats a call until it has an answer, which errors without an effect and errBroken are not.
func (f form) until(t *testing.T, w world, name string, op branch.Operation, id string, o *outcomes) string {
	for range 2000 {
		switch word := f.answer(t, w, name, op, id); {
		case slices.Contains([]string{"done", "violation", "cancelled", "hold h0", "hold h1", "hold h2", "hold h3", "hold h4"}, word):
			return word
		case word == "unknown: "+errBroken.Error(), word == "ongoing: the target is still processing the call":
		case word == "again" && f.name == lent.name:
			o.retried.Add(1)
		default: // the others had attempts of their own
			t.Errorf("%s %s: %s", name, op, word)
			return word
		}
	}
	t.Errorf("%s %s: no answer", name, op)
	return ""
}

// judge returns the faults of answers and effects, without the states.
func judge(answers []answered, effects map[string]int) (complaints []string) {
	count := map[string]int{}
	holds := map[string]bool{}
	for _, a := range answers {
		count[string(a.op)+" "+a.word]++
		if a.op == branch.Try && a.word != "cancelled" {
			holds[a.word] = true
		}
	}
	wrong := func(wrong bool, what string) {
		if wrong {
			complaints = append(complaints, fmt.Sprintf("%s (%v)", what, effects))
		}
	}
	total := func(kind string) (n int) {
		for k, v := range effects {
			if len(k) >= len(kind) && k[:len(kind)] == kind {
				n += v
			}
		}
		return n
	}
	sold, freed := total("sell"), total("free")
	wrong(total("hold") > 1 || sold > 1 || freed > 1, "an effect came twice")
	wrong(total("broken") > 0, "the effect of a call that failed is there")
	wrong(sold > 0 && freed > 0, "sold and given back")
	wrong(len(holds) > 1, "two holds were reported")
	wrong(sold+freed != total("hold"), "what is held is neither sold nor given back")
	wrong(sold > 0 && (count["cancel done"] > 0 || count["confirm done"] == 0), "sold, and told otherwise")
	wrong(sold == 0 && (count["confirm done"] > 0 || count["cancel done"] == 0), "not sold, and told otherwise")
	wrong(sold == 0 && answers[5].word != "cancelled", "a late try is let in")
	wrong(len(holds) > 0 && total("hold") == 0, "a hold was reported that was not made")
	return complaints
}

// testDeadlocks: concurrent tries and undos of one branch whose first one is rolled back return only
// errors without an effect, at either level.
func testDeadlocks(t *testing.T, w world) {
	for _, level := range []driver.Isolation{driver.RepeatableRead, driver.ReadCommitted} {
		w.table.Level, w.table.Attempts = level, 1
		var again atomic.Int64
		for seed := range 15 {
			name := fmt.Sprintf("deadlock_%v_%d", level, seed)
			var wg sync.WaitGroup
			for i := range 6 {
				wg.Go(func() {
					ctx := calling(t.Context(), name, branch.Try)
					var err error
					switch {
					case i < 2:
						_, err = barrier.Do(ctx, w.DB, w.table, seat, func(context.Context, driver.SQL) (Hold, error) { return Hold{}, errBroken })
					case i < 4:
						_, err = owned.try(ctx, w, "h1")
					default:
						err = owned.cancel(calling(t.Context(), name, branch.Cancel), w)
					}
					class, _ := branch.ClassOf(err)
					switch {
					case class == branch.ClassRetry:
						again.Add(1)
					case err != nil && !errors.Is(err, errBroken) && !errors.Is(err, barrier.ErrCancelled):
						t.Errorf("%v", err)
					}
				})
			}
			wg.Wait()
		}
		t.Logf("%v: %d calls of 90 were to be made again", level, again.Load())
	}
}
