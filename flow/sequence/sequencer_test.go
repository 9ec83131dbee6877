package sequence_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver/backend"
	_ "github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/flow/sequence"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/internal/virtual"
)

// TestOrderIsRestored, duplicates are dropped, and keys do not wait for each other.
func TestOrderIsRestored(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		var j journal
		s, _ := sequencer(t, &j, sequence.Options{})
		offers(t, s, "a", "1=delivered 1=duplicate 3=held 4=held 3=repeated")
		offers(t, s, "b", "1=delivered")
		offers(t, s, "a", "2=delivered 4=duplicate 5=delivered")
		j.want(t, "a1 dropped(a1) gap(a:2-2 after 0s) b1 a2 a3 a4 3:delivered 4:delivered dropped(a4) a5")
		if load := s.Load(); load != (sequence.Load{}) {
			t.Errorf("%+v is held", load)
		}
	})
}

// TestWaitEndsAfterFiveSeconds from when the gap was noticed. The hole is recorded before later events
// are delivered, and a late event closes it.
func TestWaitEndsAfterFiveSeconds(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		var j journal
		s, store := sequencer(t, &j, sequence.Options{})
		offers(t, s, "a", "1=delivered 5=held")
		time.Sleep(2 * time.Second)
		offers(t, s, "a", "7=held 3=held")
		time.Sleep(3*time.Second - time.Nanosecond)
		synctest.Wait()
		j.want(t, "a1 gap(a:2-4 after 0s)")
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		// 2 and 4 were noticed with 5; 6 with 7, two seconds later.
		j.want(t, "overdue(a:2-2 after 5s) recorded(a:2-2) a3 3:delivered "+
			"gap(a:4-4 after 5s) overdue(a:4-4 after 5s) recorded(a:4-4) a5 5:delivered gap(a:6-6 after 3s)")
		offers(t, s, "a", "2=late 2=duplicate 6=delivered 8=delivered")
		j.want(t, "a2-late closes(a2) dropped(a2) a6 a7 7:delivered a8")
		if holes := fmt.Sprint(store.Holes("test", "a")); holes != "[{a 0 4 4}]" {
			t.Errorf("open: %s", holes)
		}
		time.Sleep(time.Hour)
		j.want(t, "")
	})
}

// TestHalt: the key is halted until the missing event arrives, or an operator resumes it.
func TestHalt(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		var j journal
		s, store := sequencer(t, &j, sequence.Options{Halt: true})
		offers(t, s, "a", "2=held 4=held")
		offers(t, s, "b", "2=held")
		time.Sleep(time.Hour)
		_, err := s.Offer(t.Context(), event("a", 5))
		var stands *sequence.HaltedError
		if !errors.As(err, &stands) || stands.Missing != (sequence.Hole{Key: "a", From: 1, To: 1}) || interlock.Kind(err) != interlock.Retryable {
			t.Errorf("%v", err)
		}
		j.take()
		offers(t, s, "a", "1=delivered") // it arrived late
		j.want(t, "a1 a2 2:delivered gap(a:3-3 after 1h0m0s) overdue(a:3-3 after 1h0m0s) halted(a:3-3 after 1h0m0s)")
		ok(t, s.Resume(t.Context(), "a"))
		j.want(t, "recorded(a:3-3) a4 4:delivered")
		ok(t, s.Resume(t.Context(), "a")) // no key is halted
		offers(t, s, "a", "5=delivered")
		if holes := fmt.Sprint(store.Holes("test", "a"), store.Holes("test", "b")); holes != "[{a 0 3 3}] []" {
			t.Errorf("open: %s", holes)
		}
	})
}

// TestBounds: events beyond a bound are refused and can be offered again; the missing event never is.
func TestBounds(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		var j journal
		s, _ := sequencer(t, &j, sequence.Options{Buffer: 3, Gaps: 2, Bytes: 100})
		offers(t, s, "a", "2=held 3=held 4=held 5=refused")
		offers(t, s, "b", "2=held")
		_, err := s.Offer(t.Context(), event("c", 2))
		var full *sequence.FullError
		if !errors.As(err, &full) || interlock.Kind(err) != interlock.Retryable || !strings.Contains(full.Error(), "too many keys") {
			t.Errorf("a third key with a gap: %v", err)
		}
		big := event("b", 3)
		big.Payload = make([]byte, 100)
		if _, err := s.Offer(t.Context(), big); !errors.As(err, &full) || !strings.Contains(full.Error(), "too many bytes") {
			t.Errorf("too many bytes: %v", err)
		}
		if load := s.Load(); load != (sequence.Load{Keys: 2, Bytes: 4}) {
			t.Errorf("%+v is held", load)
		}
		offers(t, s, "a", "1=delivered 5=delivered")
		offers(t, s, "c", "2=held 1=delivered 3=delivered")
		big.Seq = 1
		if o, err := s.Offer(t.Context(), big); o != sequence.Delivered {
			t.Errorf("the missing event is %v: %v", o, err)
		}
		if load := s.Load(); load != (sequence.Load{}) {
			t.Errorf("%+v is held", load)
		}
	})
}

// TestFetch: fetched events are delivered in order, and only the rest is a hole. Failed, partial, late
// and foreign answers do no harm.
func TestFetch(t *testing.T) {
	for name, c := range map[string]struct {
		answer func(ctx context.Context) []int64
		want   string
		then   string // after the late answer
	}{
		"all":     {func(context.Context) []int64 { return []int64{4, 2, 3, 9} }, "a2 a3 a4 a5 5:delivered", "a6"},
		"partial": {func(context.Context) []int64 { return []int64{3} }, "overdue-2-2 recorded(a:2-2) a3 recorded(a:4-4) a5 5:delivered", "a6"},
		"none":    {func(context.Context) []int64 { return nil }, "recorded(a:2-4) a5 5:delivered", "a6"},
		"late": {func(ctx context.Context) []int64 {
			<-ctx.Done()
			time.Sleep(time.Minute) // it ignores its context
			return []int64{2, 3}
		}, "recorded(a:2-4) a5 5:delivered a2-late closes(a2) a3-late closes(a3)", "a6"},
	} {
		t.Run(name, func(t *testing.T) {
			virtual.Test(t, func(t *testing.T) {
				var j journal
				var asked []string
				s, _ := sequencer(t, &j, sequence.Options{Fetch: func(ctx context.Context, missing sequence.Hole) ([]sequence.Event, error) {
					asked = append(asked, fmt.Sprint(missing))
					var events []sequence.Event
					for _, seq := range c.answer(ctx) {
						if len(asked) == 1 {
							events = append(events, event("a", seq))
						}
					}
					return events, errors.New("and no more")
				}})
				offers(t, s, "a", "1=delivered 5=held")
				time.Sleep(10 * time.Minute)
				synctest.Wait()
				offers(t, s, "a", "6=delivered")
				var got []string
				for word := range strings.FieldsSeq(j.take()) {
					if word[0] == 'a' && word != "after" || strings.HasPrefix(word, "recorded") || strings.Contains(word, "deliver") || strings.HasPrefix(word, "closes") {
						got = append(got, word)
					}
				}
				want := "a1 " + strings.TrimPrefix(c.want, "overdue-2-2 ") + " " + c.then
				if strings.Join(got, " ") != want {
					t.Errorf("got  %v\nwant %s", got, want)
				}
				if asked[0] != "{a 0 2 4}" {
					t.Errorf("asked for %v", asked)
				}
			})
		})
	}
}

// TestFailures: Offer returns the handler's error for the offered event; a held one is retried, and only
// its key waits.
func TestFailures(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		var j journal
		broken := errors.New("broken")
		j.fail = map[string]error{"a:1": broken, "b:3": broken}
		s, _ := sequencer(t, &j, sequence.Options{})
		_, err := s.Offer(t.Context(), event("a", 1))
		if !errors.Is(err, broken) {
			t.Error(err)
		}
		offers(t, s, "b", "2=held 3=held 4=held 1=delivered")
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if got := j.take(); !strings.Contains(got, "b1") || !strings.Contains(got, "b2 2:delivered") || strings.Contains(got, "b4") ||
			!strings.Contains(got, "failed(b, 3)") {
			t.Errorf("%s", got)
		}
		j.mu.Lock()
		j.fail = nil
		j.mu.Unlock()
		time.Sleep(time.Minute)
		synctest.Wait()
		j.want(t, "b3 3:delivered b4 4:delivered")
		offers(t, s, "a", "1=delivered")
	})
}

// TestSlowHandlerGetsOn: if more events are held than the handler can handle within the timeout of a
// step, it makes progress nevertheless.
func TestSlowHandlerGetsOn(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		var j journal
		slow := func(ctx context.Context, _ struct{}, d sequence.Delivery) error {
			select {
			case <-time.After(time.Second):
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		s := over(t, &sequence.Memory{}, slow, &j, sequence.Options{Timeout: 10 * time.Second})
		for seq := int64(2); seq <= 65; seq++ {
			offers(t, s, "a", fmt.Sprint(seq, "=held"))
		}
		time.Sleep(5*time.Second + 2*64*time.Second)
		synctest.Wait()
		if got := strings.Count(j.take(), ":delivered"); got != 64 {
			t.Errorf("%d of 64 delivered in twice the time that they take", got)
		}
	})
}

// unwilling is a store that records no hole while not is set.
type unwilling struct {
	sequence.Memory
	mu  sync.Mutex
	not error
}

func (u *unwilling) Advance(ctx context.Context, m sequence.Move, fn func(context.Context, struct{}) error) error {
	u.mu.Lock()
	not := u.not
	u.mu.Unlock()
	if m.Hole != nil && not != nil {
		return not
	}
	return u.Memory.Advance(ctx, m, fn)
}

// TestNothingPassesAHoleThatIsNotRecorded: the key waits, others continue.
func TestNothingPassesAHoleThatIsNotRecorded(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		var j journal
		store := &unwilling{not: errors.New("disk full")}
		s := over(t, store, handle[struct{}](&j), &j, sequence.Options{})
		offers(t, s, "a", "2=held")
		time.Sleep(time.Hour)
		offers(t, s, "b", "1=delivered")
		if got := j.take(); strings.Contains(got, "a2") || strings.Contains(got, "recorded") || !strings.Contains(got, "overdue(a:1-1") {
			t.Errorf("%s", got)
		}
		if err := s.Resume(t.Context(), "a"); err == nil || !strings.Contains(err.Error(), "disk full") {
			t.Error(err)
		}
		store.mu.Lock()
		store.not = nil
		store.mu.Unlock()
		j.take()
		ok(t, s.Resume(t.Context(), "a"))
		j.want(t, "recorded(a:1-1) a2 2:delivered")
	})
}

// TestWhatCameDoesNotWaitForAHole: if the events of an unrecordable hole arrive, later events are
// delivered with them.
func TestWhatCameDoesNotWaitForAHole(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		var j journal
		s := over(t, &unwilling{not: errors.New("disk full")}, handle[struct{}](&j), &j, sequence.Options{})
		offers(t, s, "a", "1=delivered 4=held")
		time.Sleep(10 * time.Minute) // the next attempt is far away
		synctest.Wait()
		j.take()
		offers(t, s, "a", "2=delivered 3=delivered")
		if got := j.take(); !strings.HasSuffix(got, "a3 a4 4:delivered") {
			t.Errorf("got %s", got)
		}
	})
}

// TestErrorsOfTheStoreFromTheHandler: a handler may return errors of another store. Its event does not
// count as done.
func TestErrorsOfTheStoreFromTheHandler(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		for _, own := range []error{sequence.ErrNoHole, sequence.ErrConflict} {
			var fail error
			runs := 0
			s := over(t, &sequence.Memory{}, func(context.Context, struct{}, sequence.Delivery) error { runs++; return fail }, &journal{}, sequence.Options{})
			offers(t, s, "a", "1=delivered 4=held")
			time.Sleep(6 * time.Second)
			synctest.Wait()
			fail, runs = fmt.Errorf("another stream: %w", own), 0
			for _, seq := range []int64{2, 5} { // late, and next
				if o, err := s.Offer(t.Context(), event("a", seq)); o != sequence.Refused || !errors.Is(err, fail) {
					t.Errorf("%d: %v, %v, want %v", seq, o, err, fail)
				}
			}
			if runs != 2 {
				t.Errorf("%d runs of 2 events", runs)
			}
			fail = nil
			offers(t, s, "a", "2=late 5=delivered")
		}
	})
}

// TestClose: held events are not settled, new ones are rejected, and no goroutine is left.
func TestClose(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		var j journal
		s, _ := sequencer(t, &j, sequence.Options{Fetch: func(ctx context.Context, _ sequence.Hole) ([]sequence.Event, error) {
			<-ctx.Done()
			return nil, context.Cause(ctx)
		}})
		offers(t, s, "a", "2=held")
		time.Sleep(5*time.Second + time.Millisecond)
		closed(t, s)
		j.take()
		_, err := s.Offer(t.Context(), event("a", 1))
		wantKind(t, err, interlock.Bug, interlock.ErrClosed)
		wantKind(t, s.Resume(t.Context(), "a"), interlock.Bug, interlock.ErrClosed)
		time.Sleep(time.Hour)
		j.want(t, "")
	})
}

// TestPanic: a panic for the offered event reaches the caller of Offer. A held event whose handler panics,
// or ends its goroutine, is retried.
func TestPanic(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		var j journal
		var bad sync.Map
		bad.Store(int64(1), func() { panic("x") })
		bad.Store(int64(3), func() { panic(errOdd) })
		bad.Store(int64(6), runtime.Goexit)
		fetches := 0
		s := over(t, &sequence.Memory{}, func(_ context.Context, _ struct{}, d sequence.Delivery) error {
			if fail, found := bad.Load(d.Seq); found {
				fail.(func())()
			}
			j.add("a%d", d.Seq)
			return nil
		}, &j, sequence.Options{Concurrency: 1, Fetch: func(context.Context, sequence.Hole) ([]sequence.Event, error) {
			if fetches++; fetches == 1 {
				runtime.Goexit()
			}
			panic(errOdd)
		}})
		func() {
			defer func() { _ = recover() }()
			_, _ = s.Offer(t.Context(), event("a", 1))
			t.Error("no panic")
		}()
		bad.Delete(int64(1))
		ok(t, s.Resume(t.Context(), "a")) // no event can be delivered
		offers(t, s, "a", "3=held 1=delivered 2=delivered")
		time.Sleep(time.Second)
		synctest.Wait()
		var p *sequence.PanicError
		if err := s.Resume(t.Context(), "a"); !errors.As(err, &p) || p.Key != "a" || !errors.Is(err, errOdd) ||
			!strings.Contains(string(p.Stack), "TestPanic") {
			t.Errorf("%v, want the panic", err)
		}
		wantKind(t, p, interlock.Uncertain, interlock.ErrUncertain)
		bad.Delete(int64(3))
		time.Sleep(time.Minute)
		synctest.Wait()
		offers(t, s, "a", "4=delivered 6=held")
		j.take()
		var caller sync.WaitGroup
		caller.Go(func() { _, _ = s.Offer(t.Context(), event("a", 5)) }) // 6 ends the goroutine
		caller.Wait()
		bad.Delete(int64(6))
		time.Sleep(time.Minute)
		synctest.Wait()
		j.want(t, "a5 a6 6:delivered")
		offers(t, s, "a", "5=duplicate 8=held")
		time.Sleep(time.Minute) // meanwhile the source ends its goroutine
		synctest.Wait()
		offers(t, s, "a", "9=delivered 11=held")
		time.Sleep(time.Minute) // meanwhile it panics
		synctest.Wait()
		offers(t, s, "a", "12=delivered")
		if fetches != 2 {
			t.Errorf("%d fetches", fetches)
		}
	})
}

// TestPanicOfLateEvent: a panic of the handler for an event that the source returned too late has no caller. It ended the
// process. It is a failure, and the event stays missing.
func TestPanicOfLateEvent(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		var j journal
		bad := true
		s := over(t, &sequence.Memory{}, func(_ context.Context, _ struct{}, d sequence.Delivery) error {
			if d.Late && bad {
				panic("x")
			}
			j.add("a%d", d.Seq)
			return nil
		}, &j, sequence.Options{Fetch: func(ctx context.Context, _ sequence.Hole) ([]sequence.Event, error) {
			<-ctx.Done()
			time.Sleep(time.Minute) // it ignores its context
			return []sequence.Event{event("a", 2), event("a", 3)}, nil
		}})
		offers(t, s, "a", "1=delivered 4=held")
		time.Sleep(time.Minute)
		j.take()
		time.Sleep(time.Minute)
		synctest.Wait()
		j.want(t, "failed(a, 0) failed(a, 0)")
		bad = false
		offers(t, s, "a", "2=late 5=delivered 3=late")
	})
}

var errOdd = errors.New("odd")

// TestBadInput: invalid input is an error.
func TestBadInput(t *testing.T) {
	var j journal
	s, store := sequencer(t, &j, sequence.Options{})
	for _, e := range []sequence.Event{{}, event(strings.Repeat("x", 513), 1), event("a\x00", 1), event("\xff", 1)} {
		_, err := s.Offer(t.Context(), e)
		wantKind(t, err, interlock.Bug, interlock.ErrName)
	}
	for _, p := range []sequence.Position{{}, {Seq: -1}, {Epoch: -1, Seq: 1}} {
		_, err := s.Offer(t.Context(), sequence.Event{Key: "a", Position: p})
		wantKind(t, err, interlock.Bug, nil)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := s.Offer(ended, event("a", 1))
	wantKind(t, err, interlock.Definite, context.Canceled)
	for _, o := range []sequence.Options{{Wait: -1}, {FetchWait: -1}, {Buffer: -1}, {Bytes: -1}, {Gaps: -1}, {Timeout: -1}, {Concurrency: -1}} {
		_, err := sequence.New("test", store, handle[struct{}](&j), &o)
		wantKind(t, err, interlock.Bug, nil)
	}
	for _, stream := range []string{"", strings.Repeat("x", 256), "\x00"} {
		_, err := sequence.New(stream, store, handle[struct{}](&j), nil)
		wantKind(t, err, interlock.Bug, interlock.ErrName)
	}
	_, err = sequence.New[struct{}]("test", store, nil, nil)
	wantKind(t, err, interlock.Bug, nil)
	j.want(t, "")
}

// TestRace: goroutines offer the events of many keys, each twice and nearly in order, to a sequencer with
// small bounds. Each is delivered once and in order.
func TestRace(t *testing.T) {
	for seed := range uint64(6) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			const keys, each = 8, 40
			last := make([]int64, keys) // the handler of one key is never run twice at once
			s, err := sequence.New("test", &sequence.Memory{}, func(_ context.Context, _ struct{}, d sequence.Delivery) error {
				k := d.Key[0] - 'a'
				if d.Seq != last[k]+1 || d.Late {
					t.Errorf("%+v after %d", d, last[k])
				}
				last[k] = d.Seq
				return nil
			}, &sequence.Options{Wait: time.Minute, Buffer: 8, Gaps: 6, Cached: 2})
			ok(t, err)
			var all sync.WaitGroup
			for worker := range uint64(4) {
				r := rand.New(rand.NewPCG(seed, worker%2)) // two pairs with the same events
				all.Go(func() { bring(t, s, r, 5*keys, events(keys, each)) })
			}
			all.Wait()
			for k, n := range last {
				if n != each {
					t.Errorf("key %d is at %d", k, n)
				}
			}
			if load := s.Load(); load != (sequence.Load{}) {
				t.Errorf("%+v is held", load)
			}
			closed(t, s)
		})
	}
}

// events returns the events of some keys, in order.
func events(keys, each int) (all []sequence.Event) {
	for i := range keys * each {
		all = append(all, event(string(rune('a'+i%keys)), int64(i/keys+1)))
	}
	return all
}

// bring offers events, nearly in order, until each is accepted. It offers refused and repeated ones
// again.
func bring[T any](t *testing.T, s *sequence.Sequencer[T], r *rand.Rand, window int, todo []sequence.Event) {
	for len(todo) > 0 {
		i := r.IntN(min(len(todo), window))
		switch o, err := s.Offer(t.Context(), todo[i]); {
		case o == sequence.Repeated:
		case o != sequence.Refused:
			todo = slices.Delete(todo, i, i+1)
		case interlock.Kind(err) != interlock.Retryable:
			t.Error(err)
			return
		}
	}
}

// TestOpen: a sequencer opened by URL has its tables, and delivers in order.
func TestOpen(t *testing.T) {
	deliver := func(context.Context, interlock.SQL, sequence.Delivery) error { return nil }
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		s, err := sequence.Open(t.Context(), open(t).URL, "orders", sequence.Table{}, deliver, nil)
		ok(t, err)
		if got, err := s.Offer(t.Context(), sequence.Event{Key: "order/7", Position: sequence.Position{Seq: 1}}); got != sequence.Delivered || err != nil {
			t.Errorf("%v, %v", got, err)
		}
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}, databases.Pgx)
	if _, err := sequence.Open(t.Context(), "memory://orders", "orders", sequence.Table{}, deliver, nil); !errors.As(err, new(*backend.URLError)) {
		t.Errorf("a system without tables: %v", err)
	}
}
