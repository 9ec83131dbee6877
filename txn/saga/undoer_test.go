package saga

import (
	"context"
	"testing"
	"time"
)

// TestListUndoesAsChosen: the undo of a step of a list is called as that step has
// chosen, not as the known one that has its name; by a new owner too, and as the known
// one if the list cannot be asked any more.
func TestListUndoesAsChosen(t *testing.T) {
	for name, c := range map[string]struct {
		restart, broken, wrong bool
		undos                  int // calls until the undo is given up
	}{
		"by its owner":       {undos: 3},
		"by the next one":    {restart: true, undos: 3},
		"with a broken list": {restart: true, broken: true, undos: 2},
		"with a wrong list":  {restart: true, wrong: true, undos: 2},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				var calls int
				var longest time.Duration
				broken, wrong := false, false
				action := Step("http", func(context.Context, string) (string, error) { return "", nil }).
					Undo("http", func(ctx context.Context, _ string, _ *string) error {
						calls++
						at := time.Now()
						<-ctx.Done()
						longest = max(longest, time.Since(at))
						return ctx.Err()
					}).Retry(Policy{Undos: 2}).Timeout(time.Minute)
				refuse := Step("refuse", func(context.Context, string) (string, error) { return "", Fail(errSeat) }).Pivot()
				d := DefineList("list", func(string) ([]Stage[string], error) {
					if broken {
						panic("the list")
					}
					a := action.Named("a").Retry(Policy{Undos: 3}).Timeout(time.Second)
					if wrong {
						return []Stage[string]{a, a, refuse}, nil
					}
					return []Stage[string]{a, refuse}, nil
				}, action)
				r := serve(t, nil, 1, nil, d)
				ok(t, d.Start(t.Context(), r.engine, "1", ""))
				if c.restart {
					time.Sleep(500 * time.Millisecond)
					r.stop()
					<-r.served
					calls, longest, broken, wrong = 0, 0, c.broken, c.wrong
					r = serve(t, r.store, 2, nil, d)
				}
				time.Sleep(time.Hour)
				o, err := r.engine.Look(t.Context(), "1")
				ok(t, err)
				want := time.Second
				if c.broken || c.wrong {
					want = time.Minute
				}
				if o.State != DeadLetter || calls != c.undos || longest != want {
					t.Errorf("%s after %d undos of at most %v", o.State, calls, longest)
				}
			})
		})
	}
}
