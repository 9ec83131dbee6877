package saga

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/crash"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/internal/txntest"
)

// plot is a saga that engines must complete in spite of crashes.
type plot struct {
	saga    func(g *target) Definition[string]
	end     State
	must    []string      // effects that happen in spite of any crash, in this order; x|y are two in any order
	may     []string      // optional effects
	points  int           // of a run that does not crash
	reports bool          // its end is reported
	rest    time.Duration // from the crash of an engine to the start of the next one
}

var plots = map[string]plot{
	"all done": {
		saga: func(g *target) Definition[string] {
			return Define("order", g.undoable("a"), g.act("b").Pivot(), g.act("c"))
		},
		end: Succeeded, must: []string{"1/a/do", "1/b/do", "1/c/do"},
		points: 2*3 + 2*3, // around each append, and each call
	},
	"third step refused": {
		saga: func(g *target) Definition[string] {
			return Define("order", g.undoable("a"), g.undoable("b"), g.undoable("c", always(Fail(errSeat))...))
		},
		// The outcome of the third step is unknown if an engine crashes during its
		// call.
		end: Compensated, must: []string{"1/a/do", "1/b/do", "1/b/undo", "1/a/undo"}, may: []string{"1/c/undo?"},
		points: 2*3 + 2*4,
	},
	"third step never known": {
		saga: func(g *target) Definition[string] {
			return Define("order", g.undoable("a"), g.undoable("b"), g.undoable("c", always(errNetwork)...).Retry(Policy{Attempts: 2}))
		},
		end: Compensated, must: []string{"1/a/do", "1/b/do", "1/c/undo?", "1/b/undo", "1/a/undo"},
		points: 2*3 + 2*5,
	},
	"undo impossible": {
		saga: func(g *target) Definition[string] {
			b := g.act("b").Retry(Policy{Undos: 2}).Undo("unb", func(context.Context, string, *string) error { return errNetwork })
			return Define("order", g.undoable("a"), b, g.undoable("c", always(Fail(errSeat))...))
		},
		end: DeadLetter, must: []string{"1/a/do", "1/b/do", "1/a/undo"}, may: []string{"1/c/undo?"},
		points: 2*3 + 2*3,
	},
	"group undone": {
		saga: func(g *target) Definition[string] {
			return Define("order", Parallel(g.undoable("a"), g.undoable("b")), g.undoable("c", always(Fail(errSeat))...), g.act("p").Pivot())
		},
		end: Compensated, must: []string{"1/a/do|1/b/do", "1/b/undo|1/a/undo"}, may: []string{"1/c/undo?"},
		points: 2*3 + 2*4,
	},
	"group refused": {
		saga: func(g *target) Definition[string] {
			return Define("order", g.undoable("x"), Parallel(g.undoable("a"), g.undoable("b", always(Fail(errSeat))...)))
		},
		end: Compensated, must: []string{"1/x/do", "1/a/do", "1/a/undo", "1/x/undo"}, may: []string{"1/b/undo?"},
		points: 2*3 + 2*4,
	},
	"wait": {
		saga: func(g *target) Definition[string] {
			return Define("order", g.undoable("a"), Sleep[string]("w", 10*time.Minute), g.undoable("b"), g.act("p").Pivot())
		},
		end: Succeeded, must: []string{"1/a/do", "1/b/do", "1/p/do"},
		points: 2*5 + 2*3,
	},
	"first step refused": { // only a successor undoes a step that was declared and never called
		saga: func(g *target) Definition[string] {
			return Define("order", g.undoable("a", always(Fail(errSeat))...), g.undoable("b"), g.undoable("c"))
		},
		end: Compensated, may: []string{"1/a/undo?", "1/b/undo?", "1/c/undo?"},
		points: 2 * 2,
	},
	"pivot refused": {
		saga: func(g *target) Definition[string] {
			return Define("order", g.undoable("a"), g.act("p", always(Fail(errSeat))...).Pivot(), g.act("z"))
		},
		end: Compensated, must: []string{"1/a/do", "1/a/undo"},
		points: 2*4 + 2*2,
	},
	"list": {
		saga: func(g *target) Definition[string] {
			a := g.undoable("a")
			return DefineList("order", func(string) ([]Stage[string], error) {
				return []Stage[string]{a.At(1), a.At(2), a.Named("other"), g.undoable("no", always(Fail(errSeat))...)}, nil
			}, a, g.undoable("no"))
		},
		end:    Compensated,
		must:   []string{"1/a/1/do", "1/a/2/do", "1/other/do", "1/other/undo", "1/a/2/undo", "1/a/1/undo"},
		may:    []string{"1/no/undo?"},
		points: 2*3 + 2*6,
	},
	"parked": {
		saga: func(g *target) Definition[string] {
			return Define("order", g.undoable("a", InProgress(10*time.Minute)), g.undoable("b", always(Fail(errSeat))...), g.undoable("c"))
		},
		end: Compensated, must: []string{"1/a/do", "1/a/undo"}, may: []string{"1/b/undo?", "1/c/undo?"},
		points: 2*5 + 2*2,
	},
	"function": {
		saga: func(g *target) Definition[string] {
			a, b, no := g.undoable("a"), g.undoable("b"), g.undoable("no", always(Fail(errSeat))...)
			return DefineFunc("order", func(s *Run, in string) error {
				x, err := a.At(1).Do(s, in)
				if err != nil {
					return err
				}
				first, second := a.At(2).Go(s, x), b.Go(s, x)
				if err := s.Join(); err != nil {
					return err
				}
				y, _ := first.Output()
				z, _ := second.Output()
				_, err = no.Do(s, y+z)
				return err
			}, a, b, no)
		},
		end: Compensated, must: []string{"1/a/1/do", "1/a/2/do|1/b/do", "1/b/undo|1/a/2/undo", "1/a/1/undo"}, may: []string{"1/no/undo?"},
		points: 2*5 + 2*6,
	},
	"function completed": {
		saga: func(g *target) Definition[string] {
			a, p, z := g.undoable("a"), g.act("p").Pivot(), g.act("z")
			return DefineFunc("order", func(s *Run, in string) error {
				x, err := a.Do(s, in)
				if err == nil {
					x, err = p.Do(s, x)
				}
				if err == nil {
					err = s.Sleep("w", time.Minute/2)
				}
				if err == nil {
					_, err = z.Do(s, x)
				}
				return err
			}, a, p, z)
		},
		end: Succeeded, must: []string{"1/a/do", "1/p/do", "1/z/do"},
		points: 2*5 + 2*3,
	},
	"no signal": {
		saga: func(g *target) Definition[string] {
			return Define("order", g.undoable("a"), Signal[string, int]("w").Within(10*time.Minute).Else(1), g.undoable("b"), g.act("p").Pivot())
		},
		end: Succeeded, must: []string{"1/a/do", "1/b/do", "1/p/do"},
		points: 2*5 + 2*3,
	},
	"no signal in time": {
		saga: func(g *target) Definition[string] {
			return Define("order", g.undoable("a"), Signal[string, int]("w").Within(10*time.Minute), g.undoable("b"))
		},
		end: Compensated, must: []string{"1/a/do", "1/a/undo"},
		points: 2*4 + 2*2,
	},
	"end reported": {
		saga: func(g *target) Definition[string] {
			return Define("order", g.undoable("a"), g.act("p").Pivot()).OnEnd(func(ctx context.Context, o Outcome) error { return g.take(From(ctx).Key()) })
		},
		end: Succeeded, must: []string{"1/a/do", "1/p/do", "1//ended"}, reports: true,
		points: 2*4 + 2*3,
	},
	"time is up": { // a successor is too late to call anything, and must undo steps with an unknown outcome
		saga: func(g *target) Definition[string] {
			return Define("order", g.undoable("a"), g.undoable("b", always(InProgress(20*time.Second))...), g.undoable("c")).Timeout(30 * time.Second)
		},
		end: Compensated, rest: time.Minute,
		may:    []string{"1/a/do", "1/a/undo", "1/a/undo?", "1/b/undo?", "1/c/undo?"},
		points: 2*4 + 2*3,
	},
}

// life runs one engine from its start to its crash at a point, or to the end of the
// saga. It returns the outcome, if there was one, and the number of passed points.
func (p plot) life(t *testing.T, store *memory.Journal, g *target, epoch int64, point int) (told *Outcome, passed int) {
	t.Helper()
	if epoch > 1 {
		time.Sleep(p.rest)
	}
	at := crashAt(point)
	return p.live(t, store, g, grant(epoch), at), at.Passed()
}

// live is life under a claim.
func (p plot) live(t *testing.T, store *memory.Journal, g *target, c *claim, at *points) (told *Outcome) {
	t.Helper()
	g.points = at
	d := p.saga(g)
	r := idle(t, &watched{Journal: store, Points: at}, &settings{Options: coordinator.Options{Poll: time.Minute}}, d)
	at.Live(r.coordinator.Serve, c, func(ctx context.Context) {
		o, err := d.Do(ctx, r.engine, "1", "in")
		var ended *EndedError
		if err == nil || errors.As(err, &ended) {
			told = &o
		}
		for p.reports && told != nil && !at.Over() {
			if o, err := r.engine.Look(ctx, "1"); err != nil || !o.Ended.IsZero() {
				break
			}
			time.Sleep(time.Second)
		}
	})
	return told
}

// check judges the result independently of the machine.
func (p plot) check(t *testing.T, store *memory.Journal, g *target, told *Outcome) {
	t.Helper()
	if told == nil || told.State != p.end {
		t.Fatalf("reported %+v, want %v", told, p.end)
	}
	if p.end == Compensated {
		undoneAfter(t, g.did())
	}
	effects := slices.DeleteFunc(g.did(), func(e string) bool { return slices.Contains(p.may, e) })
	same(t, "effects", effects, inOrder(effects, p.must)...)
	for _, effect := range strings.FieldsFunc(strings.Join(p.must, "|"), func(r rune) bool { return r == '|' }) {
		if calls, effects := g.count(effect); calls < 1 || effects != 1 {
			t.Errorf("%s: %d calls, %d effects", effect, calls, effects)
		}
	}
	_, records, err := store.Read(context.Background(), "1", 0)
	ok(t, err)
	decisions, epoch := 0, interlock.Token(0)
	for i, r := range records {
		if r.Kind == recordDecide {
			decisions++
		}
		if (r.Kind == recordUndone || r.Kind == recordDead) && decisions == 0 {
			t.Errorf("record %d: undone before the decision", i+1)
		}
		if r.Epoch != 0 && r.Epoch < epoch {
			t.Errorf("record %d is a former owner's", i+1)
		}
		epoch = max(epoch, r.Epoch)
	}
	txntest.Equal(t, "decisions", decisions, 1)
	if last := records[len(records)-1].Kind; (last == recordEnd) == (p.end == DeadLetter) {
		t.Errorf("the last record is %s", last)
	}
	unscheduled(t, store)
}

// undoneAfter requires that each done step was undone after it, and only by its undo.
func undoneAfter(t *testing.T, effects []string) {
	t.Helper()
	for i, e := range effects {
		step, do := strings.CutSuffix(e, "/do")
		if do && !slices.Contains(effects[i:], step+"/undo") && !slices.Contains(effects[i:], step+"/undo?") {
			t.Errorf("%s was not undone: %v", step, effects)
		}
	}
}

// inOrder returns the required effects, with alternatives in the actual order.
func inOrder(effects, must []string) (want []string) {
	for _, m := range must {
		first, second, choice := strings.Cut(m, "|")
		switch n := len(want); {
		case choice && n < len(effects) && effects[n] == second:
			want = append(want, second, first)
		case choice:
			want = append(want, first, second)
		default:
			want = append(want, m)
		}
	}
	return want
}

// TestCrashPoints: an engine crashes before or after any append, call or answer, and its
// successor does so too. The next one completes the saga with the same end and the same
// effects, once each, in order.
func TestCrashPoints(t *testing.T) {
	for name, p := range plots {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			runs := 0
			run := func(crashes ...int) (passed []int) {
				runs++
				bubble(t, func(t *testing.T) {
					g, store := &target{}, memory.NewJournal()
					var told *Outcome
					for i, point := range append(crashes, 0) {
						var n int
						told, n = p.life(t, store, g, int64(i+1), point)
						passed = append(passed, n)
						unscheduled(t, store)
					}
					if p.check(t, store, g, told); t.Failed() {
						t.Fatalf("crashed at %v", crashes)
					}
				})
				if t.Failed() {
					t.FailNow()
				}
				return passed
			}
			all := run()[0]
			if all != p.points {
				t.Fatalf("%d points, want %d", all, p.points)
			}
			for first := 1; first <= all; first++ {
				if passed := run(first); passed[0] != first {
					t.Fatalf("the first engine passed %v", passed)
				}
				for second, step := crash.Seconds(first); ; second += step {
					if passed := run(first, second); passed[1] < second {
						break // it ended before
					}
				}
			}
			if runs < all*all/10 && !testbed.Brief() {
				t.Errorf("only %d runs", runs)
			}
			t.Log(strings.TrimSpace(fmt.Sprintf("%d points, %d runs", all, runs)))
		})
	}
}

// TestDelayedDuplicates: each message arrives again, directly after it or after any later one.
// After an engine has crashed at any point, all of them arrive again. The effects are the same.
func TestDelayedDuplicates(t *testing.T) {
	for name, p := range plots {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			play := func(again func(g *target), crashes ...int) (messages, passed int) {
				bubble(t, func(t *testing.T) {
					g, store := &target{}, memory.NewJournal()
					again(g)
					var told *Outcome
					for i, point := range append(crashes, 0) {
						var n int
						told, n = p.life(t, store, g, int64(i+1), point)
						passed = max(passed, n)
					}
					messages = len(g.calls)
					if len(crashes) > 0 {
						g.points = nil
						for _, key := range slices.Clone(g.calls) {
							_ = g.take(key)
						}
					}
					p.check(t, store, g, told)
				})
				if t.Failed() {
					t.FailNow()
				}
				return messages, passed
			}
			messages, passed := play(func(*target) {})
			for of := 1; of <= messages; of++ {
				for behind := of; behind <= messages; behind++ {
					play(func(g *target) { g.again = map[int]int{behind: of} })
				}
			}
			for point := 1; point <= passed; point++ {
				play(func(*target) {}, point)
			}
		})
	}
}

// TestStoppedAnywhere: an engine is paused at any point until another one has completed the
// saga. When it wakes up, it appends nothing and has no effect, even if its claim seems valid.
// If it sees that the claim has ended, it makes no call either, except those in transit.
func TestStoppedAnywhere(t *testing.T) {
	for name, p := range plots {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			told := 0
			for point := 1; point <= p.points; point++ {
				for _, expired := range []bool{false, true} {
					if testbed.Brief() && expired == (point%2 == 0) {
						continue // half of them without the race detector only
					}
					bubble(t, func(t *testing.T) {
						if p.stopped(t, point, expired) != nil {
							told++
						}
					})
					if t.Failed() {
						t.Fatalf("stopped at %d of %d, sees that its claim is over: %v", point, p.points, expired)
					}
				}
			}
			if told == 0 {
				t.Error("no engine that woke up returned the outcome")
			}
		})
	}
}

// stopped pauses an engine at a point, and returns the caller's outcome.
func (p plot) stopped(t *testing.T, point int, expired bool) (told *Outcome) {
	g, store := &target{}, memory.NewJournal()
	at, former, first := stopAt(point), grant(1), make(chan *Outcome, 1)
	go func() { first <- p.live(t, store, &target{of: g}, former, at) }()
	<-at.Reached
	heir, _ := p.life(t, store, g, 2, 0)
	p.check(t, store, g, heir)
	records, effects, calls := txntest.Records(t, store, "1"), g.did(), len(g.calls)
	former.Expired.Store(expired)
	close(at.Wake)
	told = <-first
	same(t, "records", txntest.Records(t, store, "1"), records...)
	same(t, "effects", g.did(), effects...)
	if late := len(g.calls) - calls; expired && late > 2 { // there are two in a group
		t.Errorf("%d calls after its claim: %v", late, g.calls[calls:])
	}
	if told != nil && told.State != p.end {
		t.Errorf("reported %+v, want %v", told, p.end)
	}
	unscheduled(t, store)
	return told
}
