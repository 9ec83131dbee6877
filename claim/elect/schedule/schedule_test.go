package schedule_test

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/elect"
	"github.com/interlock-dev/interlock/claim/elect/schedule"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/virtual"
)

func TestMain(m *testing.M) { testbed.Main(m) }

const (
	name = "rollup"
	ttl  = 3 * time.Second
)

var begin = virtual.Began

// bench is one space and the processes on it, in virtual time.
type bench struct {
	*testing.T
	space  *memory.Space
	values driver.Values
}

func inBubble(t *testing.T, test func(*bench)) {
	virtual.Test(t, func(t *testing.T) {
		space := memory.NewSpace()
		test(&bench{t, space, space.Values()})
	})
}

// diary lists events in order: "3s run", "4s late", …
type diary struct {
	mu    sync.Mutex
	lines []string
}

func (l *diary) note(t schedule.Tick, what string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, t.At.Sub(begin).String()+" "+what)
}

func (l *diary) take() []string {
	synctest.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	lines := l.lines
	l.lines = nil
	return lines
}

func (b *bench) logged(l *diary, want ...string) {
	b.Helper()
	if got := l.take(); !slices.Equal(got, want) {
		b.Errorf("got %q\nwant %q", got, want)
	}
}

// process runs a schedule in the background.
type process struct {
	driver *memory.Driver
	stop   context.CancelCauseFunc
	done   chan struct{}
	err    error
}

func (b *bench) process(o schedule.Options, job func(context.Context, schedule.Tick) error) *process {
	b.Helper()
	p := &process{driver: b.space.Open(&memory.Options{TTL: ttl}), done: make(chan struct{})}
	e, err := elect.New(p.driver, &elect.Options{Values: b.values, InProcess: true})
	testbed.OK(b, err)
	s, err := schedule.New(e, &o)
	testbed.OK(b, err)
	ctx, cancel := context.WithCancelCause(b.Context())
	p.stop = cancel
	go func() {
		defer close(p.done)
		p.err = s.Run(ctx, name, job)
	}()
	b.Cleanup(func() {
		cancel(context.Canceled)
		<-p.done
		_ = e.Close(context.Background())
		_ = p.driver.Close(context.Background())
	})
	return p
}

func after(d time.Duration) {
	time.Sleep(time.Until(begin.Add(d)))
	synctest.Wait()
}

func TestOneRunForEachTickOverAllProcesses(t *testing.T) {
	inBubble(t, func(b *bench) {
		l := &diary{}
		o := schedule.Options{Times: schedule.Every(time.Second)}
		var token interlock.Token
		for range 3 {
			b.process(o, func(_ context.Context, tick schedule.Tick) error {
				l.note(tick, "run")
				token = cmp.Or(token, tick.Term.Token())
				if tick.Term.Token() != token {
					t.Errorf("token %d after %d without a new leader", tick.Term.Token(), token)
				}
				return errors.New("a job that fails has run all the same")
			})
		}
		after(3500 * time.Millisecond)
		b.logged(l, "1s run", "2s run", "3s run")
	})
}

// TestMissedTicks: the outcome of ticks without a leader, and of one that was running
// when its leader died.
func TestMissedTicks(t *testing.T) {
	for missed, want := range map[schedule.Missed][]string{
		schedule.Skip:    {"2s skipped", "3s skipped", "4s run", "5s run"},
		schedule.RunLate: {"1s again", "2s late", "3s late", "4s run", "5s run"},
		schedule.Report:  {"1s reported, begun", "2s reported", "3s reported", "4s run", "5s run"},
	} {
		inBubble(t, func(b *bench) {
			l := &diary{}
			o := schedule.Options{Times: schedule.Every(time.Second), Missed: missed, Tolerance: 100 * time.Millisecond}
			if missed == schedule.Skip {
				o.Hooks = &schedule.Hooks{Missed: func(t schedule.Tick) { l.note(t, "skipped") }}
			}
			o.Report = func(_ context.Context, t schedule.Tick) {
				if t.Begun {
					l.note(t, "reported, begun")
				} else {
					l.note(t, "reported")
				}
			}
			after(300 * time.Millisecond)
			dying := b.process(o, func(ctx context.Context, tick schedule.Tick) error {
				l.note(tick, "begun")
				<-ctx.Done()
				return context.Cause(ctx)
			})
			after(500 * time.Millisecond)
			b.process(o, func(_ context.Context, tick schedule.Tick) error {
				switch {
				case tick.Begun:
					l.note(tick, "again")
				case tick.Late > o.Tolerance:
					l.note(tick, "late")
				default:
					l.note(tick, "run")
				}
				return nil
			})
			after(1200 * time.Millisecond)
			b.logged(l, "1s begun")
			_ = dying.driver.Close(b.Context()) // it stops renewing without a release; the lease expires at 3.3s
			dying.stop(context.Canceled)
			after(5500 * time.Millisecond)
			b.logged(l, want...)
		})
	}
}

// stalled are values that do not answer the first write after 20 s for a while.
type stalled struct {
	driver.Values
	once *sync.Once
	by   time.Duration
}

func (s stalled) Put(ctx context.Context, name string, v driver.Value) error {
	if time.Since(begin) >= 20*time.Second {
		s.once.Do(func() { time.Sleep(s.by) })
	}
	return s.Values.Put(ctx, name, v)
}

// forgetful are values of which the answer to every other write is lost.
type forgetful struct {
	driver.Values
	writes *atomic.Int64
}

func (f forgetful) Put(ctx context.Context, name string, v driver.Value) error {
	if err := f.Values.Put(ctx, name, v); err != nil || f.writes.Add(1)%2 == 0 {
		return err
	}
	return &interlock.Error{Op: "put", Kind: interlock.Uncertain, Err: errors.New("the answer was lost")}
}

// TestManyWritesInDoubt: a leader whose term has had too many writes in doubt begins another term.
func TestManyWritesInDoubt(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.values = forgetful{b.values, new(atomic.Int64)}
		var last schedule.Tick
		p := b.process(schedule.Options{Times: schedule.Every(time.Second)}, func(_ context.Context, tick schedule.Tick) error {
			last = tick
			return nil
		})
		after((interlock.MaxSub/2 + 10) * time.Second) // each tick has two writes
		select {
		case <-p.done:
			b.Fatalf("the schedule has ended at %v: %v", last.At.Sub(begin), p.err)
		default:
		}
		if age := time.Since(last.At); age > 2*time.Second {
			b.Errorf("the last run was %v ago", age)
		}
	})
}

// TestASlowStore: a tick whose record took longer than the tolerance is missed.
func TestASlowStore(t *testing.T) {
	for missed, want := range map[schedule.Missed]string{schedule.Skip: "skipped", schedule.RunLate: "run", schedule.Report: "reported"} {
		inBubble(t, func(b *bench) {
			b.values = stalled{b.values, new(sync.Once), 7 * time.Second}
			l := &diary{}
			o := schedule.Options{Times: schedule.Every(10 * time.Second), Missed: missed}
			if missed == schedule.Skip {
				o.Hooks = &schedule.Hooks{Missed: func(t schedule.Tick) { l.note(t, "skipped") }}
			}
			o.Report = func(_ context.Context, t schedule.Tick) {
				if t.Begun || t.Late != 7*time.Second {
					b.Errorf("reported as %+v", t)
				}
				l.note(t, "reported")
			}
			b.process(o, func(_ context.Context, tick schedule.Tick) error { l.note(tick, "run"); return nil })
			after(45 * time.Second)
			b.logged(l, "10s run", "20s "+want, "30s run", "40s run")
		})
	}
}

// TestADayOfMissedTicks: after a day without a leader, a job that is due every second
// runs for the newest ticks only, and not for all 86,400.
func TestADayOfMissedTicks(t *testing.T) {
	for maxLate, want := range map[int]int{0: schedule.DefaultMaxLate, 1: 1, 7: 7} {
		inBubble(t, func(b *bench) {
			var late, dropped []time.Time
			o := schedule.Options{Times: schedule.Every(time.Second), Missed: schedule.RunLate, MaxLate: maxLate,
				Hooks: &schedule.Hooks{Missed: func(t schedule.Tick) { dropped = append(dropped, t.At) }}}
			job := func(_ context.Context, t schedule.Tick) error {
				if t.Late > 0 {
					late = append(late, t.At)
				}
				return nil
			}
			first := b.process(o, job)
			after(1500 * time.Millisecond)
			first.stop(context.Canceled)
			<-first.done
			after(24*time.Hour + 1500*time.Millisecond)
			b.process(o, job)
			after(24*time.Hour + 4500*time.Millisecond)
			if len(late) != want || len(late)+len(dropped) != 24*60*60 {
				t.Fatalf("MaxLate %d: %d ran late and %d were dropped, want %d", maxLate, len(late), len(dropped), want)
			}
			if last := begin.Add(24*time.Hour + time.Second); !late[want-1].Equal(last) || !late[0].Equal(last.Add(time.Second*time.Duration(1-want))) ||
				!dropped[0].Equal(begin.Add(2*time.Second)) {
				t.Errorf("MaxLate %d: ran from %v to %v", maxLate, late[0], late[want-1])
			}
		})
	}
}

// TestAnOrderlyEnd: a leader that ends normally waits for its job, and records its end.
func TestAnOrderlyEnd(t *testing.T) {
	for ends, want := range map[error][]string{
		nil:               {"2s run"},
		context.Canceled:  {"1s again", "2s run"},
		errors.New("bad"): {"1s again", "2s run"},
	} {
		inBubble(t, func(b *bench) {
			l := &diary{}
			o := schedule.Options{Times: schedule.Every(time.Second), Missed: schedule.RunLate}
			leader := b.process(o, func(ctx context.Context, tick schedule.Tick) error {
				<-ctx.Done()
				return ends
			})
			after(500 * time.Millisecond)
			b.process(o, func(_ context.Context, tick schedule.Tick) error {
				if tick.Begun {
					l.note(tick, "again")
				} else {
					l.note(tick, "run")
				}
				return nil
			})
			after(1500 * time.Millisecond)
			enough := errors.New("enough")
			leader.stop(enough)
			<-leader.done
			if !errors.Is(leader.err, enough) {
				t.Errorf("Run returned %v", leader.err)
			}
			after(2500 * time.Millisecond)
			b.logged(l, want...)
		})
	}
}

// TestNoRunAfterTheEnd: no job begins after Run's context has ended, for any number of
// late ticks.
func TestNoRunAfterTheEnd(t *testing.T) {
	inBubble(t, func(b *bench) {
		runs := 0
		var p *process
		o := schedule.Options{Times: schedule.Every(time.Second), Missed: schedule.RunLate, MaxLate: 1000}
		p = b.process(o, func(context.Context, schedule.Tick) error {
			if runs++; runs == 1 {
				time.Sleep(500 * time.Second) // then 500 ticks are late
			} else {
				p.stop(context.Canceled)
			}
			return nil
		})
		<-p.done
		if runs != 2 {
			t.Errorf("%d runs, want 2", runs)
		}
	})
}

// TestAFormerLeaderCannotReplaceTheState: once a leader has begun, late writes of a
// former one are rejected, even before the first tick.
func TestAFormerLeaderCannotReplaceTheState(t *testing.T) {
	inBubble(t, func(b *bench) {
		var former interlock.Token
		o := schedule.Options{Times: schedule.Every(time.Minute)}
		p := b.process(o, func(_ context.Context, t schedule.Tick) error { former = t.Term.Token(); return nil })
		after(61 * time.Second)
		p.stop(context.Canceled)
		<-p.done
		b.process(o, nil)
		synctest.Wait()
		late := driver.Value{Token: former, Data: []byte(`{"tick":"2026-01-01T00:02:00Z"}`)}
		if err := b.space.Values().Put(b.Context(), "saved/schedule/"+name, late); !errors.Is(err, interlock.ErrStaleToken) {
			t.Errorf("it was not refused: %v", err)
		}
	})
}

func TestAJobLongerThanItsPeriod(t *testing.T) {
	inBubble(t, func(b *bench) {
		l := &diary{}
		first := true
		b.process(schedule.Options{Times: schedule.Every(time.Second),
			Hooks: &schedule.Hooks{
				Missed: func(t schedule.Tick) { l.note(t, "skipped") },
				Ran: func(r schedule.Ran) {
					l.note(r.Tick, "ran "+r.Took.String())
				},
			}},
			func(ctx context.Context, tick schedule.Tick) error {
				if first {
					first = false
					time.Sleep(2700 * time.Millisecond)
				}
				return nil
			})
		after(4500 * time.Millisecond)
		b.logged(l, "1s ran 2.7s", "2s skipped", "3s skipped", "4s ran 0s")
	})
}

// TestBlockingHook: a hook that blocks stops no job, also if ticks are skipped.
func TestBlockingHook(t *testing.T) {
	inBubble(t, func(b *bench) {
		l, unblock := &diary{}, make(chan struct{})
		defer close(unblock)
		b.process(schedule.Options{Times: schedule.Every(10 * time.Second), Hooks: &schedule.Hooks{Ran: func(schedule.Ran) { <-unblock }}},
			func(_ context.Context, tick schedule.Tick) error {
				l.note(tick, "run")
				if tick.At.Equal(begin.Add(20 * time.Second)) {
					time.Sleep(16 * time.Second)
				}
				return nil
			})
		after(45 * time.Second)
		b.logged(l, "10s run", "20s run", "40s run")
	})
}

// thrice is due three times.
type thrice struct{}

func (thrice) Next(t time.Time) time.Time {
	if next := schedule.Every(time.Minute).Next(t); next.Before(begin.Add(3500 * time.Millisecond * 60)) {
		return next
	}
	return time.Time{}
}

func TestTheEndOfATimetableEndsRun(t *testing.T) {
	inBubble(t, func(b *bench) {
		l := &diary{}
		job := func(_ context.Context, tick schedule.Tick) error { l.note(tick, "run"); return nil }
		one, two := b.process(schedule.Options{Times: thrice{}}, job), b.process(schedule.Options{Times: thrice{}}, job)
		<-one.done
		<-two.done
		if one.err != nil || two.err != nil {
			t.Errorf("Run returned %v and %v", one.err, two.err)
		}
		b.logged(l, "1m0s run", "2m0s run", "3m0s run")
	})
}

// distant is due after more time than a time.Duration can hold.
type distant struct{ asked atomic.Int64 }

func (d *distant) Next(time.Time) time.Time {
	if d.asked.Add(1) > 1000 {
		panic("the leader does not wait")
	}
	return begin.AddDate(300, 0, 0)
}

func TestADistantTickIsWaitedFor(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.process(schedule.Options{Times: &distant{}}, nil)
		after(time.Hour)
	})
}

func TestRunGivesUpOnWhatCannotGetBetter(t *testing.T) {
	inBubble(t, func(b *bench) {
		d := b.space.Open(nil)
		defer d.Close(context.Background())
		e, err := elect.New(d, &elect.Options{InProcess: true})
		testbed.OK(t, err)
		s, err := schedule.New(e, &schedule.Options{Times: schedule.Every(time.Second)})
		testbed.OK(t, err)
		if err := s.Run(b.Context(), name, nil); interlock.Kind(err) != interlock.Bug || !strings.Contains(err.Error(), "no Values") {
			t.Errorf("without Values: %v", err)
		}
		_ = e.Close(b.Context())
		if err := s.Run(b.Context(), name, nil); !errors.Is(err, interlock.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
	})
}

func TestOptionsAreChecked(t *testing.T) {
	for _, o := range []*schedule.Options{
		nil, {Times: schedule.Every(0)}, {Times: schedule.Every(1), Missed: 7}, {Times: schedule.Every(1), Missed: -1},
		{Times: schedule.Every(1), Missed: schedule.Report}, {Times: schedule.Every(1), Tolerance: -1},
	} {
		if _, err := schedule.New(nil, o); err == nil || interlock.Kind(err) != interlock.Bug {
			t.Errorf("%+v: %v", o, err)
		}
	}
}
