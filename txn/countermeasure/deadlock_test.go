package countermeasure_test

import (
	"context"
	"errors"

	"github.com/interlock-dev/interlock/claim/deadlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/txn/countermeasure"
)

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
