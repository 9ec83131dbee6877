package idempotency_test

import (
	"context"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/guard/idempotency"
)

// still is the database of a process that stands still before a COMMIT: that of the
// number at. Nothing is sent meanwhile, and the connection stays.
type still struct {
	driver.BeginnerAt[tx]
	at     int
	stands chan struct{} // closed as it stands still
	goOn   chan struct{} // closed by the test
	n      int
}

func (s *still) Begin(ctx context.Context) (driver.Tx[tx], error) {
	t, err := s.BeginnerAt.Begin(ctx)
	return stillTx{t, s}, err
}

func (s *still) BeginAt(ctx context.Context, level driver.Isolation) (driver.Tx[tx], error) {
	t, err := s.BeginnerAt.BeginAt(ctx, level)
	return stillTx{t, s}, err
}

type stillTx struct {
	driver.Tx[tx]
	s *still
}

func (t stillTx) Native() tx { return t.Tx.Native() }

func (t stillTx) Commit(ctx context.Context) error {
	if t.s.n++; t.s.n == t.s.at {
		close(t.s.stands)
		<-t.s.goOn
	}
	return t.Tx.Commit(ctx)
}

// stopped starts a request by a process that stands still before its COMMIT of the
// number at; goOn lets it go on, and returns its outcome.
func (w world) stopped(t *testing.T, at int, key string, fn idempotency.Func) (goOn func() (idempotency.Response, error)) {
	s := &still{BeginnerAt: w.DB, at: at, stands: make(chan struct{}), goOn: make(chan struct{})}
	store := open(t, idempotency.NewSQL[tx](s, idempotency.Table{}), nil)
	became := later(func() (idempotency.Response, error) { return store.Do(t.Context(), order(key), fn) })
	<-s.stands
	return func() (idempotency.Response, error) {
		close(s.goOn)
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
