package isolation

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/observe"
)

// scripted begins transactions that fail by a script. It simulates no database: the system tests
// have real ones.
type scripted struct {
	begins, commits []error // of each attempt in turn; nil where there is none
	dialect         driver.Dialect
	log             []string
}

func next(errs *[]error) (err error) {
	if len(*errs) > 0 {
		err, *errs = (*errs)[0], (*errs)[1:]
	}
	return err
}

func (s *scripted) Begin(ctx context.Context) (driver.Tx[*scripted], error) {
	return s.BeginAt(ctx, driver.SessionIsolation)
}

func (s *scripted) BeginAt(_ context.Context, level driver.Isolation) (driver.Tx[*scripted], error) {
	s.log = append(s.log, "begin "+level.String())
	return &scriptedTx{s: s}, next(&s.begins)
}

// scriptedTx is one of its transactions, with only the methods that are called.
type scriptedTx struct {
	driver.SQL
	s *scripted
}

func (t *scriptedTx) Dialect() driver.Dialect  { return t.s.dialect }
func (t *scriptedTx) Native() *scripted        { return t.s }
func (t *scriptedTx) Classify(err error) error { return err }
func (t *scriptedTx) Bound(_ context.Context, idle, statement time.Duration) error {
	t.s.log = append(t.s.log, "bound "+idle.String()+" "+statement.String())
	return nil
}

func (t *scriptedTx) Commit(context.Context) error {
	t.s.log = append(t.s.log, "commit")
	return next(&t.s.commits)
}

func (t *scriptedTx) Rollback(ctx context.Context) error {
	t.s.log = append(t.s.log, "rollback")
	return nil
}

// told records the events of hooks, and the waits.
type told struct {
	waits   []time.Duration
	retried []observe.IsolationRetried
	ended   []observe.IsolationEnded
	cancel  func() // at the first wait
}

func (w *told) options(attempts int) *Options {
	now := time.Unix(1, 0)
	return &Options{Attempts: attempts,
		Observe: observe.Isolation{
			Retried: func(e observe.IsolationRetried) { w.retried = append(w.retried, e) },
			Ended:   func(e observe.IsolationEnded) { w.ended = append(w.ended, e) },
		},
		clock: &clock{
			now:    func() time.Time { return now },
			random: func() float64 { return 0.5 },
			sleep: func(ctx context.Context, d time.Duration) bool {
				w.waits, now = append(w.waits, d), now.Add(d)
				if w.cancel != nil {
					w.cancel()
				}
				return ctx.Err() == nil
			},
		},
	}
}

func errorOf(kind interlock.ErrorKind) error {
	return &interlock.Error{Op: "test", Kind: kind, Err: errors.New("on purpose")}
}

var (
	undone  = errorOf(interlock.Retryable)
	unknown = errorOf(interlock.Uncertain)
	refused = errorOf(interlock.Definite)
)

func TestWhatIsRunAgain(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		begins, works, commits []error
		runs                   int // of the function
		attempts               int
		kind                   interlock.ErrorKind
		target                 error // nil: it works
	}{
		"at once":                              {runs: 1, attempts: 1},
		"undone in a statement":                {works: []error{undone, undone}, runs: 3, attempts: 3},
		"undone at the commit":                 {commits: []error{undone, undone, undone}, runs: 4, attempts: 4},
		"not begun":                            {begins: []error{undone}, runs: 1, attempts: 2},
		"undone each time":                     {works: []error{undone, undone, undone}, commits: []error{undone, undone}, runs: 5, attempts: 5, kind: interlock.Retryable, target: undone},
		"an uncertain commit":                  {commits: []error{unknown}, runs: 1, attempts: 1, kind: interlock.Uncertain, target: unknown},
		"an uncertain commit after an undoing": {commits: []error{undone, unknown}, runs: 2, attempts: 2, kind: interlock.Uncertain, target: unknown},
		"an uncertain error of the function":   {works: []error{unknown}, runs: 1, attempts: 1, kind: interlock.Uncertain, target: unknown},
		"a refusal":                            {works: []error{undone, refused}, runs: 2, attempts: 2, kind: interlock.Definite, target: refused},
		"a refused commit":                     {commits: []error{refused}, runs: 1, attempts: 1, kind: interlock.Definite, target: refused},
		"a context that ended":                 {works: []error{context.Canceled}, runs: 1, attempts: 1, kind: interlock.Definite, target: context.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			db, w, runs := &scripted{begins: c.begins, commits: c.commits}, told{}, 0
			err := Serializable(t.Context(), db, w.options(0), func(context.Context, *scripted) error {
				runs++
				return next(&c.works)
			})
			if runs != c.runs || !errors.Is(err, c.target) || err != nil && interlock.Kind(err) != c.kind {
				t.Errorf("after %d runs: %v (%v)", runs, err, interlock.Kind(err))
			}
			var exhausted *ExhaustedError
			if errors.As(err, &exhausted) != (c.runs == DefaultAttempts) ||
				exhausted != nil && (exhausted.Attempts != DefaultAttempts || exhausted.Level != driver.Serializable) {
				t.Errorf("%v", err)
			}
			if len(w.ended) != 1 || w.ended[0].Attempts != c.attempts || w.ended[0].Err != err || len(w.retried) != c.attempts-1 {
				t.Errorf("told %+v, %+v", w.retried, w.ended)
			}
			for i, e := range w.retried {
				if e.Attempt != i+1 || e.Level != "serializable" || e.Wait != w.waits[i] || !errors.Is(e.Err, undone) {
					t.Errorf("told %+v", e)
				}
			}
		})
	}
}

// TestWaitsGrow with jitter, and equal the times that the hooks receive.
func TestWaitsGrow(t *testing.T) {
	t.Parallel()
	db, w := &scripted{}, told{}
	err := Do(t.Context(), db, driver.RepeatableRead, w.options(9), func(context.Context, *scripted) error { return undone })
	sum := time.Duration(0)
	for i, wait := range w.waits {
		sum += wait
		if want := min(time.Second, 20*time.Millisecond<<i) / 2; wait != want {
			t.Errorf("wait %d is %v, want %v", i, wait, want)
		}
	}
	if len(w.waits) != 8 || len(w.ended) != 1 || w.ended[0].Took != sum || interlock.Kind(err) != interlock.Retryable {
		t.Errorf("%v after %v; told %+v", err, w.waits, w.ended)
	}
}

// TestEndsBetweenAttempts: nothing was done, and the cause is returned.
func TestEndsBetweenAttempts(t *testing.T) {
	t.Parallel()
	cause := errors.New("shutting down")
	ctx, cancel := context.WithCancelCause(t.Context())
	db, w := &scripted{}, told{cancel: func() { cancel(cause) }}
	err := Serializable(ctx, db, w.options(0), func(context.Context, *scripted) error { return undone })
	if !errors.Is(err, cause) || !errors.Is(err, undone) || interlock.Kind(err) != interlock.Retryable {
		t.Errorf("%v (%v)", err, interlock.Kind(err))
	}
}

// TestEndedBeforeCommit: COMMIT is not sent, and that is Definite.
func TestEndedBeforeCommit(t *testing.T) {
	t.Parallel()
	cause := errors.New("shutting down")
	ctx, cancel := context.WithCancelCause(t.Context())
	db := &scripted{}
	err := Serializable(ctx, db, nil, func(context.Context, *scripted) error { cancel(cause); return nil })
	if !errors.Is(err, cause) || interlock.Kind(err) != interlock.Definite {
		t.Errorf("%v (%v)", err, interlock.Kind(err))
	}
	db.mustHave(t, "begin serializable", "rollback")
}

func (s *scripted) mustHave(t *testing.T, want ...string) {
	t.Helper()
	if len(s.log) != len(want) {
		t.Fatalf("%q, want %q", s.log, want)
	}
	for i := range want {
		if s.log[i] != want[i] {
			t.Fatalf("%q, want %q", s.log, want)
		}
	}
}

func TestRequests(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		dialect driver.Dialect
		options Options
		works   []error
		want    []string
	}{
		"postgres":          {driver.Postgres, Options{}, nil, []string{"begin serializable", "commit"}},
		"postgres, bounded": {driver.Postgres, Options{Idle: time.Second, Statement: time.Minute}, nil, []string{"begin serializable", "bound 1s 1m0s", "commit"}},
		"mariadb":           {driver.MariaDB, Options{}, nil, []string{"begin serializable", "bound 24h0m0s 0s", "commit"}},
		"undone":            {driver.Postgres, Options{clock: (&told{}).options(0).clock}, []error{undone}, []string{"begin serializable", "rollback", "begin serializable", "commit"}},
	} {
		t.Run(name, func(t *testing.T) {
			db := &scripted{dialect: c.dialect}
			testbed.OK(t, Serializable(t.Context(), db, &c.options, func(context.Context, *scripted) error { return next(&c.works) }))
			db.mustHave(t, c.want...)
		})
	}
}

func TestImpossibleOptions(t *testing.T) {
	t.Parallel()
	for _, o := range []Options{{Attempts: -1}, {Idle: -1}, {Idle: 1, Statement: -1}, {Statement: time.Second}} {
		db := &scripted{}
		err := Serializable(t.Context(), db, &o, func(context.Context, *scripted) error { return nil })
		if interlock.Kind(err) != interlock.Bug || len(db.log) > 0 {
			t.Errorf("%+v: %v, %q", o, err, db.log)
		}
	}
}
