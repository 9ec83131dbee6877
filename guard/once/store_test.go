package once_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/driver/redis"
	"github.com/interlock-dev/interlock/guard/once"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/crash"
	"github.com/interlock-dev/interlock/internal/virtual"
	"github.com/interlock-dev/interlock/observe"
)

func newStore(t testing.TB, d driver.Once, o *once.BestEffortOptions) *once.BestEffort {
	t.Helper()
	s, err := once.NewBestEffort(d, "billing", o)
	ok(t, err)
	return s
}

// tally counts effects.
type tally struct{ n atomic.Int64 }

func (c *tally) add(context.Context) error { c.n.Add(1); return nil }

// faulty is a driver.Once that loses answers or requests.
type faulty struct {
	driver.Once
	claims, dones   atomic.Int64 // the number of lost answers
	lostRequests    bool
	claimed, forgot atomic.Int64
}

var errLost = &interlock.Error{Op: "ask", Kind: interlock.Uncertain, Err: errors.New("no answer")}

func (f *faulty) Claim(ctx context.Context, d driver.Delivery, lease time.Duration) (driver.Claimed, error) {
	f.claimed.Add(1)
	if f.claims.Add(-1) < 0 {
		return f.Once.Claim(ctx, d, lease)
	}
	if !f.lostRequests {
		_, _ = f.Once.Claim(ctx, d, lease)
	}
	return driver.Unclaimed, errLost
}

func (f *faulty) Done(ctx context.Context, d driver.Delivery, keep time.Duration) error {
	if f.dones.Add(-1) < 0 {
		return f.Once.Done(ctx, d, keep)
	}
	if !f.lostRequests {
		_ = f.Once.Done(ctx, d, keep)
	}
	return errLost
}

func (f *faulty) Forget(ctx context.Context, d driver.Delivery) error {
	f.forgot.Add(1)
	return f.Once.Forget(ctx, d)
}

func TestStore(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		var told []string
		hooks := &observe.Once{
			Duplicate:  func(m observe.OnceMessage) { told = append(told, "duplicate "+m.ID) },
			Mismatched: func(m observe.OnceMessage) { told = append(told, "mismatched "+m.ID) },
		}
		s := newStore(t, memory.NewOnce(), &once.BestEffortOptions{Hooks: hooks, Retention: 24 * time.Hour})
		var c tally
		for _, wanted := range []once.Outcome{once.Done, once.Duplicate} {
			outcome, err := s.Once(t.Context(), message(1), c.add)
			want(t, outcome, err, wanted)
		}
		outcome, err := s.Once(t.Context(), once.Message{ID: "m1"}, c.add)
		if mismatch, found := errors.AsType[*once.MismatchError](err); outcome != once.Mismatched || !found || *mismatch != (once.MismatchError{Consumer: "billing", Message: "m1"}) {
			t.Errorf("%v, %v", outcome, err)
		}
		if got := fmt.Sprint(told); got != "[duplicate m1 mismatched m1]" || c.n.Load() != 1 {
			t.Errorf("told %s, %d effects", got, c.n.Load())
		}
		own := errors.New("no money")
		outcome, err = s.Once(t.Context(), message(2), func(context.Context) error { return own })
		if outcome != once.Undone || err != own {
			t.Errorf("%v, %v", outcome, err)
		}
		outcome, err = s.Once(t.Context(), message(2), c.add) // at once
		want(t, outcome, err, once.Done)
		func() {
			defer func() { _ = recover() }()
			_, _ = s.Once(t.Context(), message(3), func(context.Context) error { panic("oops") })
		}()
		ctx, cancel := context.WithCancel(t.Context())
		outcome, err = s.Once(ctx, message(3), func(ctx context.Context) error { cancel(); return c.add(ctx) })
		want(t, outcome, err, once.Done) // it is recorded although the caller has left
		outcome, err = s.Once(t.Context(), message(3), c.add)
		want(t, outcome, err, once.Duplicate)
		time.Sleep(24 * time.Hour)
		outcome, err = s.Once(t.Context(), message(1), c.add) // forgotten
		want(t, outcome, err, once.Done)
	})
}

func TestStoreBadInput(t *testing.T) {
	s := newStore(t, memory.NewOnce(), nil)
	run := func(context.Context) error { t.Error("ran"); return nil }
	for _, m := range []once.Message{{}, {ID: "a\x00"}, {ID: "m", Hash: []byte{1}}, {ID: "m", Seq: 1, Key: "k"}, {ID: "m", Seq: -1}} {
		_, err := s.Once(t.Context(), m, run)
		wantKind(t, err, interlock.Bug, nil)
	}
	_, err := s.Once(t.Context(), message(1), nil)
	wantKind(t, err, interlock.Bug, nil)
	for _, open := range []func() (*once.BestEffort, error){
		func() (*once.BestEffort, error) { return once.NewBestEffort(nil, "c", nil) },
		func() (*once.BestEffort, error) { return once.NewBestEffort(memory.NewOnce(), "", nil) },
		func() (*once.BestEffort, error) {
			return once.NewBestEffort(memory.NewOnce(), "c", &once.BestEffortOptions{Lease: -1})
		},
		func() (*once.BestEffort, error) {
			return once.NewBestEffort(memory.NewOnce(), "c", &once.BestEffortOptions{Retention: driver.MaxKeep + 1})
		},
	} {
		_, err := open()
		wantKind(t, err, interlock.Bug, nil)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = s.Once(ctx, message(1), run)
	wantKind(t, err, interlock.Definite, context.Canceled)
}

// TestStoreHeld: a running delivery blocks another until its lease expires. Then both have the
// effect: the second exception of the weaker guarantee.
func TestStoreHeld(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		f := &faulty{Once: memory.NewOnce()}
		s := newStore(t, f, &once.BestEffortOptions{Lease: 10 * time.Second})
		var c tally
		slow := later(t, func() (once.Outcome, error) {
			return s.Once(t.Context(), message(1), func(ctx context.Context) error {
				<-ctx.Done()
				if !errors.Is(context.Cause(ctx), interlock.ErrExpired) {
					t.Errorf("its context ended with %v", context.Cause(ctx))
				}
				time.Sleep(5 * time.Second) // it ignores its context
				return c.add(ctx)
			})
		})
		synctest.Wait()
		_, err := s.Once(t.Context(), message(1), c.add)
		var held *interlock.HeldError
		if wantKind(t, err, interlock.Retryable, interlock.ErrHeld); !errors.As(err, &held) {
			t.Errorf("%v does not tell who", err)
		}
		if n := f.claimed.Load(); n != 2 {
			t.Errorf("%d claims were sent: that it is held is an answer", n)
		}
		time.Sleep(11 * time.Second)
		outcome, err := s.Once(t.Context(), message(1), c.add)
		want(t, outcome, err, once.Done)
		a := slow()
		if wantKind(t, a.err, interlock.Uncertain, interlock.ErrLost); a.outcome != once.Undone || c.n.Load() != 2 {
			t.Errorf("%v, %d effects: the window is closed, and the documentation is wrong", a.outcome, c.n.Load())
		}
	})
}

// slow is a driver.Once whose answers to claims are late.
type slow struct {
	driver.Once
	by time.Duration
}

func (s slow) Claim(ctx context.Context, d driver.Delivery, lease time.Duration) (driver.Claimed, error) {
	defer time.Sleep(s.by)
	return s.Once.Claim(ctx, d, lease)
}

// TestStoreLateClaim: an effect does not begin after its lease has expired, by a late
// answer or a paused process.
func TestStoreLateClaim(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		f := &faulty{Once: memory.NewOnce()}
		s := newStore(t, slow{f, time.Second}, &once.BestEffortOptions{Lease: time.Second})
		outcome, err := s.Once(t.Context(), message(1), func(context.Context) error {
			t.Error("the effect began")
			return nil
		})
		if wantKind(t, err, interlock.Retryable, interlock.ErrExpired); outcome != once.Undone || f.forgot.Load() != 1 {
			t.Errorf("%v, forgot %d", outcome, f.forgot.Load())
		}
	})
}

// TestStoreLostAnswers: retries recover a few lost answers, and lost requests.
func TestStoreLostAnswers(t *testing.T) {
	for _, lost := range []bool{false, true} {
		virtual.Test(t, func(t *testing.T) {
			var c tally
			f := &faulty{Once: memory.NewOnce(), lostRequests: lost}
			f.claims.Store(3)
			f.dones.Store(3)
			s := newStore(t, f, nil)
			for _, wanted := range []once.Outcome{once.Done, once.Duplicate} {
				outcome, err := s.Once(t.Context(), message(1), c.add)
				want(t, outcome, err, wanted)
			}
			f.claims.Store(4)
			_, err := s.Once(t.Context(), message(2), c.add)
			wantKind(t, err, interlock.Uncertain, nil)
			if c.n.Load() != 1 {
				t.Errorf("%d effects", c.n.Load())
			}
			f.claims.Store(0)
			f.dones.Store(4)
			f.forgot.Store(0)
			outcome, err := s.Once(t.Context(), message(2), c.add) // at once, also if the claim was acquired
			if wantKind(t, err, interlock.Uncertain, interlock.ErrUncertain); outcome != once.Undone || c.n.Load() != 2 || f.forgot.Load() != 0 {
				t.Errorf("%v, %d effects, forgot %d: an effect that was made must not be forgotten", outcome, c.n.Load(), f.forgot.Load())
			}
			if !lost { // it was recorded
				outcome, err = s.Once(t.Context(), message(2), c.add)
				want(t, outcome, err, once.Duplicate)
			}
		})
	}
}

// unclear stores the first claim without an answer. Then all claims of its owner fail.
type unclear struct {
	driver.Once
	owner string
}

var errDown = &interlock.Error{Op: "ask", Kind: interlock.Retryable, Err: errors.New("down")}

func (u *unclear) Claim(ctx context.Context, d driver.Delivery, lease time.Duration) (driver.Claimed, error) {
	switch u.owner {
	case "":
		u.owner = d.Owner
		_, _ = u.Once.Claim(ctx, d, lease)
		return driver.Unclaimed, errLost
	case d.Owner:
		return driver.Unclaimed, errDown
	}
	return u.Once.Claim(ctx, d, lease)
}

// TestStoreUnclearClaim: a claim that may be stored is forgotten, also if the last try failed in another way.
func TestStoreUnclearClaim(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		var c tally
		s := newStore(t, &unclear{Once: memory.NewOnce()}, nil)
		_, err := s.Once(t.Context(), message(1), c.add)
		wantKind(t, err, interlock.Retryable, errDown)
		outcome, err := s.Once(t.Context(), message(1), c.add) // at once
		want(t, outcome, err, once.Done)
	})
}

// storeLease is the lease of the killed consumer.
const storeLease = 300 * time.Millisecond

// rememberer is a consumer whose effect is a line in a list of another server. Its
// points are before the claim, before and after the effect, and after the record.
func rememberer(ctx context.Context, at *crash.Points, args []string) error {
	client, err := redis.Dial("redis://" + args[0])
	if err != nil {
		return err
	}
	defer client.Close()
	s, err := once.NewBestEffort(redis.NewOnce(client), "billing", &once.BestEffortOptions{Lease: storeLease})
	if err != nil {
		return err
	}
	at.Pass()
	for {
		_, err = s.Once(ctx, message(1), func(ctx context.Context) error {
			at.Pass()
			err := client.Do(ctx, client.B().Rpush().Key("effects").Element("m1").Build()).Error()
			at.Pass()
			return err
		})
		if !errors.Is(err, interlock.ErrHeld) {
			at.Pass()
			return err
		}
		time.Sleep(10 * time.Millisecond) // until the killed consumer's lease ends
	}
}

// TestStoreCrash shows the weaker guarantee: a consumer that is killed anywhere and restarted has
// its effect once, except at the point between the effect and the record.
func TestStoreCrash(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	client, err := redis.Dial("redis://" + server.Addr())
	ok(t, err)
	defer client.Close()
	for point, wanted := range []int64{0: 1, 1: 1, 2: 1, 3: 2, 4: 1} {
		ok(t, client.Do(t.Context(), client.B().Flushall().Build()).Error())
		if _, killed := crash.Run(t, "rememberer", point, server.Addr()); killed != (point > 0) {
			t.Fatalf("killed at %d: %v", point, killed)
		}
		crash.Run(t, "rememberer", 0, server.Addr())
		n, err := client.Do(t.Context(), client.B().Llen().Key("effects").Build()).AsInt64()
		if ok(t, err); n != wanted {
			t.Errorf("killed at %d: %d effects, want %d", point, n, wanted)
		}
	}
}
