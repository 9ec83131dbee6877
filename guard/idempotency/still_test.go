package idempotency_test

import (
	"context"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/guard/idempotency"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

// stopped starts a request by a process that stands still before its COMMIT of the
// number at; goOn lets it go on, and returns its outcome.
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

// testStandsStill: a process is stopped between the only statement of a step and its
// COMMIT. It keeps the record's row for some seconds and no longer: from the attempt
// that is at work, if it was a duplicate's claim, or from the next one, if it was the
// finish. When it goes on, it has the answer of the others, or is refused.
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
