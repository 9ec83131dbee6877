package bench

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/branchhttp"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/saga"
)

// measure is how long each figure is measured, and how often.
type measure struct {
	clients []int
	rounds  int
	window  time.Duration
}

// chosen is the whole measurement where INTERLOCK_BENCH is full, else one that shows
// that it works.
func chosen() measure {
	if os.Getenv("INTERLOCK_BENCH") == "full" {
		return measure{clients: []int{1, 32, 128}, rounds: 3, window: 3 * time.Second}
	}
	return measure{clients: []int{8}, rounds: 1, window: 300 * time.Millisecond}
}

// TestSagas reports sagas of two steps per second, by the number of clients that wait
// for the end of theirs before they start the next, and as a ratio to the durable
// commits of one row, or one key, that as many clients make in the same run. Every
// effect is counted: each step of each saga took place once.
func TestSagas(t *testing.T) {
	m := chosen()
	for _, open := range stores {
		t.Run("", func(t *testing.T) { // one after the other, each with the machine to itself
			s := open(t)
			w := newWorkload(t, s)
			for _, clients := range m.clients {
				rates := map[string][]float64{}
				kinds := map[string]func(context.Context) error{"commits": s.commit, "in process": w.saga(w.local), "over HTTP": w.saga(w.remote)}
				for range m.rounds {
					for _, kind := range []string{"commits", "in process", "over HTTP"} {
						rates[kind] = append(rates[kind], rate(t, clients, m.window, kinds[kind]))
					}
				}
				commits := median(rates["commits"])
				line := fmt.Sprintf("%-8s  %3d clients  %7.0f commits/s", s.name, clients, commits)
				for _, kind := range []string{"in process", "over HTTP"} {
					line += fmt.Sprintf("   %s %6.0f sagas/s (%.2f)", kind, median(rates[kind]), median(rates[kind])/commits)
				}
				fmt.Println(line)
			}
			w.judge(t)
		})
	}
}

func median(of []float64) float64 {
	slices.Sort(of)
	return of[len(of)/2]
}

// rate is how often per second something was done by clients that each do one thing
// after the other. What is under way at the end is waited for.
func rate(t *testing.T, clients int, window time.Duration, do func(context.Context) error) float64 {
	t.Helper()
	var done atomic.Int64
	var work sync.WaitGroup
	start := time.Now()
	for range clients {
		work.Go(func() {
			for time.Since(start) < window {
				if err := do(context.Background()); err != nil {
					t.Error(err)
					return
				}
				done.Add(1)
			}
		})
	}
	work.Wait()
	return float64(done.Load()) / time.Since(start).Seconds()
}

// workload is sagas on a store.
type workload struct {
	engine        *saga.Engine
	local, remote saga.Definition[string]
	started       atomic.Int64
	effects       sync.Map // by key
	twice         atomic.Int64
}

func newWorkload(t *testing.T, s store) *workload {
	t.Helper()
	w := &workload{}
	act := func(ctx context.Context, key string) (string, error) {
		if _, there := w.effects.LoadOrStore(key, true); there {
			w.twice.Add(1)
		}
		return "done", nil
	}
	w.local = w.define("local", func(ctx context.Context, _ string) (string, error) { return act(ctx, branch.From(ctx).Key()) })
	participant := httptest.NewServer(branchhttp.Handler(func(ctx context.Context, _ []byte) ([]byte, error) {
		text, err := act(ctx, branch.From(ctx).Key())
		return fmt.Appendf(nil, "%q", text), err
	}))
	t.Cleanup(participant.Close)
	transport := &http.Transport{MaxIdleConnsPerHost: 256}
	t.Cleanup(transport.CloseIdleConnections)
	caller := branchhttp.Caller{Client: &http.Client{Transport: transport}}
	w.remote = w.define("remote", func(ctx context.Context, input string) (string, error) {
		answer, err := caller.Post(ctx, participant.URL, branch.From(ctx), fmt.Appendf(nil, "%q", input))
		return string(answer), err
	})
	w.engine = serve(t, s, &coordinator.Options{PerTarget: 256}, nil, w.local, w.remote)
	return w
}

// define makes a saga of two steps, the second of which is the pivot.
func (w *workload) define(name string, act func(ctx context.Context, input string) (string, error)) saga.Definition[string] {
	undo := func(context.Context, string, *string) error { return nil }
	return saga.Define(name, saga.Step("reserve", act).Undo("release", undo), saga.Step("pay", act).Pivot())
}

// saga starts one and waits for its end.
func (w *workload) saga(d saga.Definition[string]) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := d.Do(ctx, w.engine, fmt.Sprintf("saga/%d", w.started.Add(1)), "in")
		if interlock.Kind(err) == interlock.Uncertain {
			return fmt.Errorf("not ended: %w", err)
		}
		return err
	}
}

// judge compares what took place with what was started.
func (w *workload) judge(t *testing.T) {
	t.Helper()
	effects := int64(0)
	w.effects.Range(func(any, any) bool { effects++; return true })
	if sagas := w.started.Load(); effects != 2*sagas || w.twice.Load() != 0 || sagas == 0 {
		t.Errorf("%d sagas had %d effects, %d of them twice", sagas, effects, w.twice.Load())
	}
}
