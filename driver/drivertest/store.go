package drivertest

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
)

// StoreHarness gives the suite of a store access to it. S is the store's interface
// in package driver.
type StoreHarness[S any] struct {
	// Bubble runs one test; nil calls test itself. The memory driver passes
	// synctest.Test.
	Bubble func(t *testing.T, test func(t *testing.T))
	// Start prepares an empty store for one test and registers its clean-up with
	// t.Cleanup. The store's clock is within a few minutes of the test's. If
	// exclusive is set, the test kills or pauses the server.
	Start func(t *testing.T, exclusive bool) StoreBackend[S]
	// Without lists what the store lacks: Servers if it has no server to break, LostReplies if
	// it cannot lose replies, Durable if a restart loses its data. Every other ability must be
	// present.
	Without Ability
}

// StoreBackend is one running store.
type StoreBackend[S any] interface {
	// Open opens the store as a further process would, on the same data, over its
	// own path that Faults can break.
	Open(t *testing.T) (S, error)
	// Beside opens the store over a path without faults.
	Beside(t *testing.T) (S, error)
	// Faults is nil if there is no server to break (Without Servers). Its
	// DropReplies, if it is a ReplyDropper, may take effect at the next request
	// that changes something.
	Faults() Faults
}

// suiteTest is one test of a suite and its needs. C is the scene of the suite.
type suiteTest[C any] struct {
	name  string
	needs Ability
	test  func(C)
}

// runTests calls run in a subtest for each test that needs nothing of without.
func runTests[C any](t *testing.T, without Ability, tests []suiteTest[C], run func(*testing.T, suiteTest[C])) {
	for _, c := range tests {
		if c.needs&without == 0 {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				run(t, c)
			})
		}
	}
}

// exclusive reports whether a test breaks the server itself.
func (a Ability) exclusive() bool { return a&(Servers|onPaths) == Servers }

// inBubble runs a test in bubble, or directly if bubble is nil.
func inBubble(t *testing.T, bubble func(*testing.T, func(*testing.T)), test func(*testing.T)) {
	if bubble == nil {
		test(t)
	} else {
		bubble(t, test)
	}
}

// runStore runs the tests of a store's suite. scene creates the scene of one test.
func runStore[S, C any](t *testing.T, h StoreHarness[S], scene func(*storeScene[S]) C, tests []suiteTest[C]) {
	runTests(t, h.Without, tests, func(t *testing.T, c suiteTest[C]) {
		inBubble(t, h.Bubble, func(t *testing.T) {
			b := h.Start(t, c.needs.exclusive())
			s := &storeScene[S]{T: t, backend: b, faults: b.Faults(), start: interlock.CounterAt(time.Now()),
				durable: h.Without&Durable == 0}
			c.needs.mustHave(t, s.faults, b)
			s.store = s.open()
			c.test(scene(s))
		})
	})
}

// endedContext returns a context that has ended, and its cause.
func endedContext(t *testing.T) (context.Context, error) {
	cause := errors.New("the caller changed its mind")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	return ctx, cause
}

// storeScene is one test with its store and a first opening of it.
type storeScene[S any] struct {
	*testing.T
	backend StoreBackend[S]
	faults  Faults
	store   S
	start   int64 // the counter of the present time
	durable bool

	openings []S // see atOnce
}

func (s *storeScene[S]) open() S {
	s.Helper()
	store, err := s.backend.Open(s.T)
	if err != nil {
		s.Fatalf("open: %v", err)
	}
	return store
}

// beside opens the store over a path without faults.
func (s *storeScene[S]) beside() S {
	s.Helper()
	store, err := s.backend.Beside(s.T)
	if err != nil {
		s.Fatalf("open beside: %v", err)
	}
	return store
}

// token returns a token with the given distance from the counter of the present time.
func (s *storeScene[S]) token(ahead int64, sub int) interlock.Token {
	return newToken(s.T, s.start+ahead, sub)
}

// tokenStep is one token of a sequence.
type tokenStep struct {
	token            interlock.Token
	strict, accepted bool
}

// tokenSteps returns sequences that a store could order wrongly: tokens differ in their last bits or
// number of digits, or exceed what a float represents. now is the counter of the present time.
func tokenSteps(t *testing.T, now int64) (steps []tokenStep) {
	t.Helper()
	if now < 1<<40 {
		t.Fatalf("the present counter is %d: no test of large ones", now)
	}
	for _, s := range []struct {
		counter          int64
		sub              int
		strict, accepted bool
	}{
		{5, 1, false, true},
		{5, 0, false, false},
		{5, 1, false, true},
		{5, 1, true, false},
		{5, 2, true, true},
		{6, 0, false, true},
		{5, interlock.MaxSub, false, false},
		{1000, 0, false, true}, // more digits
		{999, 0, false, false},
		{1<<40 + 1, 0, false, true},
		{1 << 40, interlock.MaxSub, false, false},
		{now, 7, false, true},
		{now, 7, false, true},
		{now, 7, true, false},
		{now, 6, false, false},
		{now, 8, true, true},
		{now, interlock.MaxSub, false, true},
		{now - 1, interlock.MaxSub, false, false},
		{now + 1, 0, true, true},
		{now, interlock.MaxSub, false, false},
		{now, interlock.MaxSub, true, false},
	} {
		steps = append(steps, tokenStep{newToken(t, s.counter, s.sub), s.strict, s.accepted})
	}
	return steps
}

// mustFail requires an error of a kind that also is another; nil means any.
func (s *storeScene[S]) mustFail(err error, kind interlock.ErrorKind, target error) {
	s.Helper()
	if err == nil || interlock.Kind(err) != kind || target != nil && !errors.Is(err, target) {
		s.Fatalf("got %v (%v), want an error of kind %v (%v)", err, interlock.Kind(err), kind, target)
	}
}

// mustBeStale requires a refusal of a resource that reports both tokens.
func (s *storeScene[S]) mustBeStale(err error, resource string, seen, got interlock.Token) {
	s.Helper()
	s.mustFail(err, interlock.Definite, interlock.ErrStaleToken)
	var stale *interlock.StaleTokenError
	if want := (interlock.StaleTokenError{Resource: resource, Seen: seen, Got: got}); !errors.As(err, &stale) || *stale != want {
		s.Fatalf("the refusal reports %+v, want %+v", stale, want)
	}
}

// eachName calls store with each odd name, and returns those that it does not reject with ErrName.
func (s *storeScene[S]) eachName(store func(i int, name string) error) (taken []string) {
	s.Helper()
	for i, name := range oddNames {
		if err := store(i, name); err == nil {
			taken = append(taken, name)
		} else if !errors.Is(err, interlock.ErrName) {
			s.Fatalf("name %q: %v", name, err)
		}
	}
	if len(taken) < len(oddNames)/2 {
		s.Fatalf("only %d of %d names are allowed", len(taken), len(oddNames))
	}
	return taken
}

// persist repeats errors that may be repeated, as the portable types do.
func (s *storeScene[S]) persist(what string, try func(context.Context) error) {
	s.Helper()
	for end := time.Now().Add(restarted); ; time.Sleep(20 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(s.Context(), 2*time.Second)
		err := try(ctx)
		cancel()
		kind := interlock.Kind(err)
		switch {
		case err == nil:
			return
		case kind != interlock.Uncertain && kind != interlock.Retryable:
			s.Fatalf("%s: %v", what, err)
		case time.Now().After(end):
			s.Fatalf("%s: still no outcome after %v: %v", what, restarted, err)
		}
	}
}

// loseReply makes a request over an open connection and drops its reply. The request must return
// soon after its deadline, with the cause and an unknown outcome.
func (s *storeScene[S]) loseReply(request func(context.Context) error) {
	s.Helper()
	errTimeUp := errors.New("the caller has no more time")
	s.faults.(ReplyDropper).DropReplies()
	ctx, cancel := context.WithTimeoutCause(s.Context(), unanswered, errTimeUp)
	defer cancel()
	began := time.Now()
	err := request(ctx)
	if took := time.Since(began); took > 3*time.Second {
		s.Fatalf("it returned after %v, with a deadline of %v", took, unanswered)
	}
	s.mustFail(err, interlock.Uncertain, errTimeUp)
	s.mustFail(err, interlock.Uncertain, interlock.ErrUncertain)
	s.faults.Heal()
}

// loseReads cuts the path of an open connection under requests that only read. Their errors are
// Retryable, since nothing was changed.
func (s *storeScene[S]) loseReads(reads ...func(context.Context) error) {
	s.Helper()
	s.faults.Cut()
	for _, read := range reads {
		ctx, cancel := context.WithTimeout(s.Context(), unanswered)
		err := read(ctx)
		cancel()
		s.mustFail(err, interlock.Retryable, nil)
	}
	s.faults.Heal()
	s.persist("read again", reads[0])
}

// unanswered is the deadline of a request whose reply is dropped.
const unanswered = 500 * time.Millisecond

// persistUntil repeats a request as persist does, until it also reports true.
func (s *storeScene[S]) persistUntil(what string, try func(context.Context) (bool, error)) {
	s.Helper()
	s.persist(what, func(ctx context.Context) error {
		done, err := try(ctx)
		if err == nil && !done {
			return interlock.ErrUncertain
		}
		return err
	})
}

// restartAround kills the server, requires that a request fails with an error that may be
// repeated, and starts the server again.
func (s *storeScene[S]) restartAround(request func(context.Context) error) {
	s.Helper()
	s.faults.Kill()
	ctx, cancel := context.WithTimeout(s.Context(), time.Second)
	defer cancel()
	err := request(ctx)
	if kind := interlock.Kind(err); err == nil || kind != interlock.Uncertain && kind != interlock.Retryable {
		s.Fatalf("without a server: %v (%v)", err, kind)
	}
	s.faults.Restart()
}

// retried repeats a call while it has no effect because others are faster.
func retried[A any](do func() (A, error)) (a A, err error) {
	for range 100 {
		if a, err = do(); interlock.Kind(err) != interlock.Retryable {
			break
		}
	}
	return a, err
}

// readUntil calls read repeatedly until do, which runs concurrently, has returned.
func readUntil(do, read func()) {
	over := make(chan struct{})
	go func() { defer close(over); do() }()
	defer func() { <-over }() // also if read ends the test
	for done := false; !done; read() {
		select {
		case <-over:
			done = true
		case <-time.After(100 * time.Microsecond): // advances virtual time
		}
	}
}

// atOnce runs do n times concurrently, on three openings of the store in turn. Errors fail the test.
func (s *storeScene[S]) atOnce(n int, do func(i int, store S) error) {
	s.Helper()
	if s.openings == nil {
		s.openings = []S{s.store, s.open(), s.open()}
	}
	var running sync.WaitGroup
	for i := range n {
		running.Go(func() {
			if err := do(i, s.openings[i%len(s.openings)]); err != nil {
				s.Error(err)
			}
		})
	}
	running.Wait()
}
