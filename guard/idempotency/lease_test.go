package idempotency_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/guard/idempotency"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/internal/virtual"
	"github.com/interlock-dev/interlock/observe"
)

// TestLeaseShorterThanHandler: a handler that takes ten leases keeps the others out,
// and its answer counts.
func TestLeaseShorterThanHandler(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		s := open(t, memory.NewIdempotency(), &idempotency.Options{Lease: time.Second})
		first := later(func() (idempotency.Response, error) {
			return s.Do(t.Context(), order("k"), func(ctx context.Context) (idempotency.Response, error) {
				time.Sleep(10 * time.Second)
				return answer(200, "slow"), context.Cause(ctx)
			})
		})
		synctest.Wait()
		for range 40 {
			_, err := s.Do(t.Context(), order("k"), never)
			as[*idempotency.InFlightError](t, err)
			time.Sleep(240 * time.Millisecond)
		}
		got, err := first()
		wantAnswer(t, got, err, "slow", false)
		got, err = s.Do(t.Context(), order("k"), never)
		wantAnswer(t, got, err, "slow", true)
	})
}

// TestLostLeaseEndsTheHandler: if its renewals fail, its context ends when the lease does, not
// before, with the cause.
func TestLostLeaseEndsTheHandler(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		records := &unrenewed{Idempotency: memory.NewIdempotency()}
		var lost []observe.IdempotencyLost
		var failed atomic.Int64
		s := open(t, records, &idempotency.Options{Lease: 3 * time.Second, Hooks: &observe.Idempotency{
			Lost:    func(e observe.IdempotencyLost) { lost = append(lost, e) },
			Renewed: func(e observe.IdempotencyRenewed) { failed.Add(1) },
		}})
		began := time.Now()
		got, err := s.Do(t.Context(), order("k"), func(ctx context.Context) (idempotency.Response, error) {
			<-ctx.Done()
			if took := time.Since(began); took != 3*time.Second || !errors.Is(context.Cause(ctx), interlock.ErrExpired) {
				t.Errorf("after %v: %v", took, context.Cause(ctx))
			}
			_, err := idempotency.Step(ctx, "late", func(context.Context) (int, error) { return 0, nil })
			wantKind(t, err, interlock.Definite, interlock.ErrExpired)
			return answer(200, "all the same"), nil
		})
		// No other attempt has begun, so its answer counts.
		wantAnswer(t, got, err, "all the same", false)
		if len(lost) != 1 || lost[0].Key != "k" || lost[0].Attempt != 1 || failed.Load() < 3 {
			t.Errorf("%+v, %d renewals failed", lost, failed.Load())
		}
	})
}

// TestABlockingHookStopsNoRenewal: the hook of a renewal that failed blocks. The lease is renewed all the
// same, and Close waits for the hook.
func TestABlockingHookStopsNoRenewal(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		unblock := make(chan struct{})
		s := open(t, &unrenewed{Idempotency: memory.NewIdempotency(), answers: 3}, &idempotency.Options{Lease: 3 * time.Second, Hooks: &observe.Idempotency{
			Renewed: func(observe.IdempotencyRenewed) { <-unblock },
		}})
		got, err := s.Do(t.Context(), order("k"), func(ctx context.Context) (idempotency.Response, error) {
			defer close(unblock)
			time.Sleep(10 * time.Second)
			_, err := s.Do(t.Context(), order("k"), never)
			as[*idempotency.InFlightError](t, err)
			short, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if err := s.Close(short); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Close did not wait: %v", err)
			}
			return answer(200, "slow"), context.Cause(ctx)
		})
		wantAnswer(t, got, err, "slow", false)
		ok(t, s.Close(t.Context()))
	})
}

// unrenewed loses renewals: all if answers is 0, otherwise those before.
type unrenewed struct {
	driver.Idempotency
	answers int // the first renewal that is answered
	sent    atomic.Int64
}

func (u *unrenewed) Update(ctx context.Context, change driver.IdempotencyUpdate) error {
	if change.Answer == nil && change.Points == nil && change.Lease > 0 && (u.answers == 0 || int(u.sent.Add(1)) < u.answers) {
		return &interlock.Error{Op: "renew", Kind: interlock.Uncertain, Err: errors.New("no reply")}
	}
	return u.Idempotency.Update(ctx, change)
}

// unclear stores the first claim without a reply. Then all claims of its owner fail.
type unclear struct {
	driver.Idempotency
	owner string
	last  error
}

func (u *unclear) Claim(ctx context.Context, c driver.IdempotencyClaim) (driver.IdempotencyRecord, error) {
	switch u.owner {
	case "":
		u.owner = c.Owner
		_, err := u.Idempotency.Claim(ctx, c)
		return driver.IdempotencyRecord{}, &interlock.Error{Op: "claim", Kind: interlock.Uncertain, Err: errors.Join(errors.New("no reply"), err)}
	case c.Owner:
		return driver.IdempotencyRecord{}, u.last
	}
	return u.Idempotency.Claim(ctx, c)
}

// TestAnUnclearClaimIsGivenBack, whatever the error of the last try is: a retry can begin at once.
func TestAnUnclearClaimIsGivenBack(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		for _, kind := range []interlock.ErrorKind{interlock.Uncertain, interlock.Retryable, interlock.Definite} {
			last := &interlock.Error{Op: "claim", Kind: kind, Err: errors.New("down")}
			s := open(t, &unclear{Idempotency: memory.NewIdempotency(), last: last}, nil)
			_, err := s.Do(t.Context(), order("k"), never)
			wantKind(t, err, kind, last)
			got, err := s.Do(t.Context(), order("k"), func(context.Context) (idempotency.Response, error) { return answer(200, "at once"), nil })
			wantAnswer(t, got, err, "at once", false)
		}
	})
}

// TestOvertakenHandlerIsTold: another attempt has begun; the next renewal ends the
// first one's context with ErrLost, and its answer is not shown.
func TestOvertakenHandlerIsTold(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		records := memory.NewIdempotency()
		s := open(t, records, &idempotency.Options{Lease: 3 * time.Second})
		first := later(func() (idempotency.Response, error) {
			return s.Do(t.Context(), order("k"), func(ctx context.Context) (idempotency.Response, error) {
				<-ctx.Done()
				if !errors.Is(context.Cause(ctx), interlock.ErrLost) {
					t.Errorf("%v", context.Cause(ctx))
				}
				return answer(200, "stale"), nil
			})
		})
		synctest.Wait()
		release(t, records, "k")
		got, err := s.Do(t.Context(), order("k"), func(context.Context) (idempotency.Response, error) { return answer(200, "new"), nil })
		wantAnswer(t, got, err, "new", false)
		_, err = first()
		wantKind(t, err, interlock.Definite, interlock.ErrLost)
		got, err = s.Do(t.Context(), order("k"), never)
		wantAnswer(t, got, err, "new", true)
	})
}

// release ends the lease of the handler at work, as an operator would.
func release(t testing.TB, records driver.Idempotency, key string) {
	t.Helper()
	id := driver.IdempotencyID{Scope: "alice", Operation: "POST /orders", Key: key}
	r, err := records.Claim(t.Context(), driver.IdempotencyClaim{ID: id, Fingerprint: "none", Owner: "operator", Lease: time.Second})
	ok(t, err)
	ok(t, records.Update(t.Context(), driver.IdempotencyUpdate{ID: id, Owner: r.Owner}))
}

// TestTimeOutIsNotForEver: after a crash the request stays in flight exactly as long as its lease.
func TestTimeOutIsNotForEver(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		records := memory.NewIdempotency()
		_, err := records.Claim(t.Context(), driver.IdempotencyClaim{ID: driver.IdempotencyID{Scope: "alice", Operation: "POST /orders", Key: "k"},
			Fingerprint: order("k").Fingerprint, Owner: "vanished", Lease: 30 * time.Second})
		ok(t, err)
		s := open(t, records, nil)
		began, call := time.Now(), order("k")
		call.Wait = time.Hour
		got, err := s.Do(t.Context(), call, func(ctx context.Context) (idempotency.Response, error) {
			if n := idempotency.From(ctx).Attempt(); n != 2 {
				t.Errorf("attempt %d", n)
			}
			return answer(200, "late"), nil
		})
		wantAnswer(t, got, err, "late", false)
		if took := time.Since(began); took < 30*time.Second || took > 31*time.Second {
			t.Errorf("after %v", took)
		}
	})
}

// TestWaitIsBounded: by Call.Wait and by the caller's context, with pauses between reads.
func TestWaitIsBounded(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		counting := &countingClaims{Idempotency: memory.NewIdempotency()}
		s := open(t, counting, nil)
		first := later(func() (idempotency.Response, error) {
			return s.Do(t.Context(), order("k"), func(context.Context) (idempotency.Response, error) {
				time.Sleep(time.Minute)
				return answer(200, ""), nil
			})
		})
		synctest.Wait()
		began, call := time.Now(), order("k")
		call.Wait = 10 * time.Second
		_, err := s.Do(t.Context(), call, never)
		as[*idempotency.InFlightError](t, err)
		if took := time.Since(began); took != call.Wait || counting.n.Load() > 200 {
			t.Errorf("after %v, with %d looks", took, counting.n.Load())
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began = time.Now()
		if _, err = s.Do(ctx, call, never); err == nil || time.Since(began) != time.Second {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		_, err = first()
		ok(t, err)
	})
}

type countingClaims struct {
	driver.Idempotency
	n atomic.Int64
}

func (c *countingClaims) Claim(ctx context.Context, claim driver.IdempotencyClaim) (driver.IdempotencyRecord, error) {
	c.n.Add(1)
	return c.Idempotency.Claim(ctx, claim)
}

// TestCallerGone: the end of the caller's context reaches the handler; its later answer, or its
// failure, is still recorded.
func TestCallerGone(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		s := open(t, memory.NewIdempotency(), nil)
		for _, fails := range []bool{false, true} {
			ctx, cancel := context.WithCancel(t.Context())
			call := order(map[bool]string{false: "answers", true: "fails"}[fails])
			_, err := s.Do(ctx, call, func(ctx context.Context) (idempotency.Response, error) {
				cancel()
				<-ctx.Done()
				if fails {
					return idempotency.Response{}, ctx.Err()
				}
				return answer(200, "done"), nil
			})
			if errors.Is(err, context.Canceled) != fails {
				t.Error(err)
			}
			got, err := s.Do(t.Context(), call, func(context.Context) (idempotency.Response, error) { return answer(200, "done"), nil })
			wantAnswer(t, got, err, "done", !fails)
		}
	})
}

// later runs fn concurrently, and returns a function that waits for its result.
func later(fn func() (idempotency.Response, error)) func() (idempotency.Response, error) {
	type result struct {
		response idempotency.Response
		err      error
	}
	done := make(chan result, 1)
	go func() {
		response, err := fn()
		done <- result{response, err}
	}()
	return func() (idempotency.Response, error) {
		r := <-done
		return r.response, r.err
	}
}

// stopped starts a request by a process that is paused before its COMMIT number at; goOn resumes
// it, and returns its outcome.
func (w world) stopped(t *testing.T, at int, key string, fn idempotency.Func) (goOn func() (idempotency.Response, error)) {
	stands, proceed, commits := make(chan struct{}), make(chan struct{}), 0
	db := databases.Committing[driver.SQL]{BeginnerAt: w.DB, Instead: func(ctx context.Context, tx driver.Tx[driver.SQL]) error {
		if commits++; commits == at {
			close(stands)
			<-proceed
		}
		return tx.Commit(ctx)
	}}
	store := open(t, idempotency.NewSQL[tx](db, idempotency.Table{}), nil)
	became := later(func() (idempotency.Response, error) { return store.Do(t.Context(), order(key), fn) })
	<-stands
	return func() (idempotency.Response, error) {
		close(proceed)
		return became()
	}
}

// TestStandsStill: a process is paused between the only statement of a step and its COMMIT. It
// locks the record's row for only some seconds: against the running attempt after a duplicate's
// claim, against the next attempt after a finish. When it continues, it gets the others' answer, or
// is rejected.
func TestStandsStill(t *testing.T) { eachBeside(t, testStandsStill, clients...) }

func testStandsStill(t *testing.T, w world) {
	pay := func(ctx context.Context) (idempotency.Response, error) {
		s, err := phase(ctx, w.records, "pay")
		return answer(200, s), err
	}
	began := time.Now()
	var duplicate, finish func() (idempotency.Response, error)
	got, err := w.store.Do(t.Context(), order("k"), func(ctx context.Context) (idempotency.Response, error) {
		finish = w.stopped(t, 2, "l", func(context.Context) (idempotency.Response, error) { return answer(200, "late"), nil })
		duplicate = w.stopped(t, 1, "k", never)
		return pay(ctx)
	})
	wantAnswer(t, got, err, "pay of attempt 1", false)
	got, err = duplicate()
	wantAnswer(t, got, err, "pay of attempt 1", true)

	release(t, w.records, "l")
	got, err = w.store.Do(t.Context(), order("l"), pay)
	wantAnswer(t, got, err, "pay of attempt 2", false)
	_, err = finish()
	wantKind(t, err, interlock.Definite, interlock.ErrLost)
	if took := time.Since(began); took > bound {
		t.Errorf("it took %v", took)
	}
}
