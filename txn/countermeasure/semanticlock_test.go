package countermeasure_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/deadlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/txn/countermeasure"
	"github.com/interlock-dev/interlock/txn/internal/txntest"
)

// testFlagIsOneOwners: a flag belongs to one owner over several transactions, until it is released.
func testFlagIsOneOwners(w world) {
	ok(w, w.acquire(intent("saga/1")))
	first := w.flag("account/a")
	if first.Owner != "saga/1" || first.Purpose != "a test" || first.Expired || first.Until.Sub(first.Since) != countermeasure.DefaultTTL {
		w.Errorf("%+v", first)
	}
	held := wantHeld(w, w.acquire(intent("saga/2")), "saga/1")
	txntest.Equal(w, "the flag", held, first)
	if w.release("account/a", "saga/2") {
		w.Error("another owner has released it")
	}
	wantHeld(w, w.acquire(intent("saga/2")), "saga/1")
	other := intent("saga/2")
	other.Resource = "ACCOUNT/A " // not the same
	ok(w, w.acquire(other))
	if was := w.release("account/a", "saga/1"); !was {
		w.Error("its owner could not release it")
	}
	if w.release("account/a", "saga/1") || w.release("never", "saga/1") {
		w.Error("released again")
	}
	if f := w.flag("account/a"); f != (countermeasure.Flag{Resource: "account/a"}) {
		w.Errorf("after its release: %+v", f)
	}
	ok(w, w.acquire(intent("saga/2")))
	if f := w.flag("account/a"); f.Owner != "saga/2" || f.Former != "" || f.Since.Before(first.Since) {
		w.Errorf("%+v after %+v", f, first)
	}
	if w.release("account/a", "saga/1") {
		w.Error("a repeated release has taken the next owner's flag")
	}
}

// testFlagIsProlongedNotShortened: a repeated step of its owner does not shorten a flag.
func testFlagIsProlongedNotShortened(w world) {
	i := intent("saga/1")
	i.TTL = time.Hour
	ok(w, w.acquire(i))
	first := w.flag("account/a")
	i.TTL = time.Minute
	i.Purpose = ""
	ok(w, w.acquire(i))
	if f := w.flag("account/a"); !f.Until.Equal(first.Until) || !f.Since.Equal(first.Since) || f.Purpose != "" || f.Former != "" {
		w.Errorf("%+v after %+v", f, first)
	}
	i.TTL = 3 * time.Hour
	ok(w, w.acquire(i))
	if f := w.flag("account/a"); f.Until.Sub(first.Until) < time.Hour || !f.Since.Equal(first.Since) || f.Former != "" {
		w.Errorf("%+v after %+v", f, first)
	}
}

// testExpiredFlagStands: an expired flag stays until another saga asks the coordinator, or accepts
// a risk; its owner can still use it.
func testExpiredFlagStands(w world) {
	ok(w, w.acquire(intent("slow")))
	w.expire()
	second := intent("second")
	if f := wantHeld(w, w.acquire(second), "slow"); !f.Expired {
		w.Errorf("%+v does not show as expired", f)
	}
	var asked []string
	second.Ended = func(_ context.Context, owner string) (bool, error) {
		asked = append(asked, owner)
		return false, nil
	}
	if f := wantHeld(w, w.acquire(second), "slow"); !f.Expired || len(asked) != 1 || asked[0] != "slow" {
		w.Errorf("%+v, asked for %q", f, asked)
	}
	ok(w, w.in(func(ctx context.Context, db driver.SQL) error { return w.locks.Check(ctx, db, "account/a", "slow") }))

	wantHeld(w, w.in(func(ctx context.Context, db driver.SQL) error { return w.locks.Vacant(ctx, db, "account/a") }), "slow")

	second.Risk = "nobody looks at this account before noon"
	ok(w, w.acquire(second))
	if f := w.flag("account/a"); f.Owner != "second" || f.Former != "slow" || f.Risk != second.Risk || f.Expired || f.Until.Sub(f.Since) != countermeasure.DefaultTTL {
		w.Errorf("%+v", f)
	}
	ok(w, w.acquire(second)) // again: its former owner stays known
	if f := w.flag("account/a"); f.Former != "slow" || f.Risk != second.Risk {
		w.Errorf("%+v", f)
	}
	// The former owner detects it, and cannot change it.
	if w.release("account/a", "slow") {
		w.Error("the former owner has released it")
	}
	e := wants[*countermeasure.NotOwnerError](w, w.in(func(ctx context.Context, db driver.SQL) error {
		return w.locks.Check(ctx, db, "account/a", "slow")
	}), interlock.Definite)
	if e.Owner != "slow" || e.Flag.Owner != "second" {
		w.Errorf("%+v", e)
	}
}

// testFlagOfAnEndedTransactionIsTakenOver: only the flag of an ended transaction is taken over, at
// any age; a risk is accepted only for an expired flag.
func testFlagOfAnEndedTransactionIsTakenOver(w world) {
	ok(w, w.acquire(intent("alive")))
	i := intent("next")
	i.Risk = "none of our business"
	wantHeld(w, w.acquire(i), "alive")
	failed := errors.New("the coordinator does not answer")
	i.Ended = func(context.Context, string) (bool, error) { return true, failed }
	if err := w.acquire(i); !errors.Is(err, failed) {
		w.Errorf("%v", err)
	}
	ended := map[string]bool{}
	i.Ended = func(_ context.Context, owner string) (bool, error) { return ended[owner], nil }
	wantHeld(w, w.acquire(i), "alive")
	ended["alive"] = true
	ok(w, w.acquire(i))
	if f := w.flag("account/a"); f.Owner != "next" || f.Former != "alive" || f.Risk != "" {
		w.Errorf("%+v", f)
	}
}

// testCheckAndVacantHold: results of Check and Vacant hold until their transaction ends.
func testCheckAndVacantHold(w world) {
	vacant := func(ctx context.Context, db driver.SQL) error { return w.locks.Vacant(ctx, db, "account/a") }
	check := func(ctx context.Context, db driver.SQL) error { return w.locks.Check(ctx, db, "account/a", "saga/1") }
	e := wants[*countermeasure.NotOwnerError](w, w.in(check), interlock.Definite)
	if e.Flag.Owner != "" {
		w.Errorf("%+v", e)
	}
	for _, row := range []string{"not there yet", "released"} {
		reader := w.Begun(w.T, driver.SessionIsolation)
		ok(w, vacant(w.Context(), reader))
		acquired := testbed.Later(w, bound, func() error { return w.acquire(intent("saga/1")) })
		w.blocked(row)
		ok(w, reader.Commit(w.Context()))
		ok(w, acquired())
		wantHeld(w, w.in(vacant), "saga/1")

		step := w.Begun(w.T, driver.SessionIsolation)
		ok(w, check(w.Context(), step))
		risky := intent("saga/2")
		risky.Ended = func(context.Context, string) (bool, error) { return true, nil }
		taken := testbed.Later(w, bound, func() error { return w.acquire(risky) })
		w.blocked(row)
		ok(w, step.Commit(w.Context()))
		ok(w, taken())
		w.release("account/a", "saga/2")
	}
}

// blocked waits until one transaction waits for a lock.
func (w world) blocked(when string) {
	w.Helper()
	testbed.Eventually(w.T, when+": it waits for a lock", bound, func() bool { return w.Waiting(w.T) == 1 })
}

// testRolledBackFlagIsNone: a flag that is rolled back does not exist, and neither does a release.
func testRolledBackFlagIsNone(w world) {
	oops := errors.New("oops")
	err := w.in(func(ctx context.Context, db driver.SQL) error {
		return errors.Join(w.locks.Acquire(ctx, db, intent("saga/1")), oops)
	})
	if !errors.Is(err, oops) || w.flag("account/a").Owner != "" {
		w.Errorf("%v, %+v", err, w.flag("account/a"))
	}
	ok(w, w.acquire(intent("saga/1")))
	_ = w.in(func(ctx context.Context, db driver.SQL) error {
		was, err := w.locks.Release(ctx, db, "account/a", "saga/1")
		if !was {
			w.Error("not released")
		}
		return errors.Join(err, oops)
	})
	wantHeld(w, w.acquire(intent("saga/2")), "saga/1")
}

// testEarlySnapshotIsRefused: a transaction whose snapshot is older than the flag's last change, at a
// level that repeats reads, is refused.
func testEarlySnapshotIsRefused(w world) {
	ok(w, w.acquire(intent("saga/0")))
	w.release("account/a", "saga/0")
	for name, enter := range map[string]func(ctx context.Context, db driver.SQL) error{
		"acquire": func(ctx context.Context, db driver.SQL) error { return w.locks.Acquire(ctx, db, intent("late")) },
		"vacant":  func(ctx context.Context, db driver.SQL) error { return w.locks.Vacant(ctx, db, "account/a") },
	} {
		early := w.Begun(w.T, driver.RepeatableRead)
		_, err := databases.Value[int64](w.Context(), early, `select balance from account where id = 'a'`)
		ok(w, err)
		ok(w, w.acquire(intent("saga/1")))
		w.Exec(w.T, `update account set balance = balance + 1 where id = 'a'`)
		w.release("account/a", "saga/1")
		wantKind(w, enter(w.Context(), early), interlock.Retryable, nil)
		ok(w, early.Rollback(w.Context()))
		ok(w, w.in(enter))
		if w.release("account/a", "late"); w.flag("account/a").Owner != "" {
			w.Errorf("%s: %+v", name, w.flag("account/a"))
		}
	}
}

// testRacingSagasFlagOneAtATime: of many sagas that request one flag, at most one has it at any time,
// and each finally gets it by waiting.
func testRacingSagasFlagOneAtATime(w world) {
	const sagas, rounds = 6, 4
	var mu sync.Mutex
	inside, entered := "", 0
	var running sync.WaitGroup
	for n := range sagas {
		running.Go(func() {
			owner := string(rune('a' + n))
			for range rounds {
				err := countermeasure.Wait(context.Background(), w.BeginnerAt, &countermeasure.Patience{For: bound, First: time.Millisecond, Max: 20 * time.Millisecond},
					func(ctx context.Context, db driver.SQL) error {
						return w.locks.Acquire(ctx, db, intent(owner))
					})
				if interlock.Kind(err) == interlock.Retryable && err != nil {
					continue // a deadlock of the database's
				}
				mu.Lock()
				if err != nil || inside != "" {
					w.Errorf("%s entered while %q was inside: %v", owner, inside, err)
				}
				inside = owner
				entered++
				mu.Unlock()
				// A transaction of the saga in between.
				if err := w.in(func(ctx context.Context, db driver.SQL) error { return w.locks.Check(ctx, db, "account/a", owner) }); err != nil {
					w.Errorf("%s: %v", owner, err)
				}
				mu.Lock()
				inside = ""
				mu.Unlock()
				err = w.in(func(ctx context.Context, db driver.SQL) error {
					was, err := w.locks.Release(ctx, db, "account/a", owner)
					if err == nil && !was {
						err = errors.New("it was not the owner any more")
					}
					return err
				})
				if err != nil {
					w.Errorf("%s: %v", owner, err)
				}
			}
		})
	}
	running.Wait()
	if entered < sagas*rounds-2 {
		w.Errorf("%d entered of %d", entered, sagas*rounds)
	}
}

// testOneTakesOver: of several sagas that find an ended owner, one takes the flag over.
func testOneTakesOver(w world) {
	for range 5 {
		ok(w, w.acquire(intent("ended")))
		var running sync.WaitGroup
		won := make(chan string, 4)
		for n := range 4 {
			running.Go(func() {
				i := intent(string(rune('a' + n)))
				i.Ended = func(_ context.Context, owner string) (bool, error) { return owner == "ended", nil }
				err := w.acquire(i)
				switch {
				case err == nil:
					won <- i.Owner
				case interlock.Kind(err) != interlock.Retryable:
					w.Error(err)
				}
			})
		}
		running.Wait()
		if len(won) != 1 {
			w.Fatalf("%d took it over", len(won))
		}
		if owner := <-won; !w.release("account/a", owner) {
			w.Errorf("%s took it over, and it is %+v", owner, w.flag("account/a"))
		}
	}
}

// testSweepForgetsWhatIsNobodys: Sweep removes rows without an owner, and no flag.
func testSweepForgetsWhatIsNobodys(w world) {
	for _, resource := range []string{"one", "two", "three", "held"} {
		ok(w, w.acquire(countermeasure.Intent{Resource: resource, Owner: "saga"}))
		if resource != "held" {
			w.release(resource, "saga")
		}
	}
	sweep := func(age time.Duration, limit int) (n int64) {
		w.DB.Do(w.T, func(ctx context.Context, db driver.SQL) (err error) {
			n, err = w.locks.Sweep(ctx, db, age, limit)
			return err
		})
		return n
	}
	txntest.Equal(w, "swept that are young", sweep(time.Hour, 10), 0)
	w.expire()
	if a, b, c := sweep(time.Hour, 2), sweep(time.Hour, 2), sweep(time.Hour, 2); a != 2 || b != 1 || c != 0 {
		w.Errorf("%d, %d, %d swept", a, b, c)
	}
	if f := w.flag("held"); f.Owner != "saga" || !f.Expired {
		w.Errorf("%+v", f)
	}
	if w.Dialect == driver.Postgres {
		plan := &databases.Planned{BeginnerAt: w.DB}
		plan.Do(w.T, func(ctx context.Context, db driver.SQL) error { _, err := w.locks.Sweep(ctx, db, 0, 1); return err })
		plan.Want(w.T, "until_at")
	}
}

// testBadIntents: invalid intents return a clear error, and change nothing.
func testBadIntents(w world) {
	good := intent("saga/1")
	for name, change := range map[string]func(*countermeasure.Intent){
		"no resource":     func(i *countermeasure.Intent) { i.Resource = "" },
		"a long resource": func(i *countermeasure.Intent) { i.Resource = strings.Repeat("x", driver.MaxName+1) },
		"NUL":             func(i *countermeasure.Intent) { i.Resource = "a\x00" },
		"no UTF-8":        func(i *countermeasure.Intent) { i.Resource = "\xff" },
		"no owner":        func(i *countermeasure.Intent) { i.Owner = "" },
		"a long owner":    func(i *countermeasure.Intent) { i.Owner = strings.Repeat("x", driver.MaxTransaction+1) },
		"a bad purpose":   func(i *countermeasure.Intent) { i.Purpose = "\x00" },
		"a bad risk":      func(i *countermeasure.Intent) { i.Risk = "\xff" },
		"a negative TTL":  func(i *countermeasure.Intent) { i.TTL = -1 },
		"an absurd TTL":   func(i *countermeasure.Intent) { i.TTL = 1<<63 - 1 },
	} {
		i := good
		change(&i)
		if err := w.acquire(i); interlock.Kind(err) != interlock.Bug || err == nil {
			w.Errorf("%s: %v", name, err)
		}
	}
	longest := countermeasure.Intent{Resource: strings.Repeat("é", driver.MaxName/2), Owner: strings.Repeat("x", driver.MaxTransaction), Purpose: "'; drop table account; --"}
	ok(w, w.acquire(longest))
	if f := w.flag(longest.Resource); f.Owner != longest.Owner || f.Purpose != longest.Purpose {
		w.Errorf("%+v", f)
	}
	for _, err := range []error{
		w.in(func(ctx context.Context, db driver.SQL) error {
			_, err := w.locks.Release(ctx, db, "a", "")
			return err
		}),
		w.in(func(ctx context.Context, db driver.SQL) error { return w.locks.Check(ctx, db, "a", "") }),
		w.in(func(ctx context.Context, db driver.SQL) error { return w.locks.Vacant(ctx, db, "") }),
		w.in(func(ctx context.Context, db driver.SQL) error { _, err := w.locks.Show(ctx, db, ""); return err }),
		w.in(func(ctx context.Context, db driver.SQL) error { _, err := w.locks.Sweep(ctx, db, -1, 1); return err }),
		w.in(func(ctx context.Context, db driver.SQL) error { _, err := w.locks.Sweep(ctx, db, 1, 0); return err }),
		w.locks.Acquire(w.Context(), nil, good),
	} {
		wantKind(w, err, interlock.Bug, nil)
	}
	elsewhere := countermeasure.SemanticLock{Name: "nowhere"}
	err := w.in(func(ctx context.Context, db driver.SQL) error { return elsewhere.Acquire(ctx, db, good) })
	if wantKind(w, err, interlock.Definite, nil); !strings.Contains(err.Error(), "Create") {
		w.Errorf("%v", err)
	}
}

// testDeadlockOfFlags: two sagas have flagged a resource each, and wait for the other's. One
// of the waits ends, and its saga is undone.
func testDeadlockOfFlags(w world) {
	detector, board := deadlock.New(nil), memory.NewKeyValues()
	defer func() { ok(w, detector.Close(context.Background())) }()
	flag := func(ctx context.Context, resource, owner string) (drop func(), err error) {
		return deadlock.Wait(ctx, deadlock.Resource{Board: board, Name: "flag/" + resource}, func(ctx context.Context) error {
			return countermeasure.Wait(ctx, w.BeginnerAt, &countermeasure.Patience{For: bound}, func(ctx context.Context, db driver.SQL) error {
				return w.locks.Acquire(ctx, db, countermeasure.Intent{Resource: resource, Owner: owner, Purpose: "a test"})
			})
		})
	}
	type saga struct {
		owner, has string
		drop       func()
		err        error
	}
	ended := make(chan saga, 2)
	sagas := []saga{{owner: "one", has: "account/a"}, {owner: "two", has: "account/b"}}
	var tasks []context.Context
	for i := range sagas {
		ctx := detector.Task(w.Context(), sagas[i].owner, 0)
		tasks = append(tasks, ctx)
		drop, err := flag(ctx, sagas[i].has, sagas[i].owner)
		ok(w, err)
		sagas[i].drop = drop
	}
	for i, s := range sagas {
		go func() {
			drop, err := flag(tasks[i], sagas[1-i].has, s.owner)
			if s.err = err; err == nil {
				defer drop()
			}
			ended <- s
		}()
	}
	victim := <-ended
	if found := (*deadlock.Error)(nil); !errors.As(victim.err, &found) || len(found.Cycle) != 2 {
		w.Fatalf("the first wait ended with %v", victim.err)
	}
	if f := w.flag(victim.has); f.Owner != victim.owner {
		w.Errorf("the flag of the victim is %+v", f)
	}
	w.release(victim.has, victim.owner)
	victim.drop()
	if other := <-ended; other.err != nil || w.flag(victim.has).Owner != other.owner {
		w.Errorf("the other one ended with %v, and the flag is %+v", other.err, w.flag(victim.has))
	}
}
