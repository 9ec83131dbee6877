// Package txntest has helpers for the tests of the packages below txn: checks, virtual time, claims,
// and a journal whose process can crash or stop at each step. The requirements are in each package's
// own tests.
package txntest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/internal/virtual"
)

// OK ends the test if there is an error.
func OK(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// WantKind requires an error of a kind, which wraps target unless that is nil.
func WantKind(t testing.TB, err error, kind interlock.ErrorKind, target error) {
	t.Helper()
	if err == nil || interlock.Kind(err) != kind || target != nil && !errors.Is(err, target) {
		t.Errorf("%v (%v), want %v, %v", err, interlock.Kind(err), kind, target)
	}
}

// Same requires that got equals want.
func Same(t testing.TB, what string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: %q\nwant %q", what, got, want)
	}
}

// Equal requires that got equals want.
func Equal[V comparable](t testing.TB, what string, got, want V) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// Second returns the error of a call, and drops its value.
func Second[V any](_ V, err error) error { return err }

// Busy is an error of a participant that asks for a pause.
type Busy time.Duration

// Error returns the reason.
func (Busy) Error() string { return "too many requests" }

// RetryAfter returns the pause.
func (b Busy) RetryAfter() time.Duration { return time.Duration(b) }

// Repeat returns an error for each of n appends or calls.
func Repeat(n int, err error) []error { return slices.Repeat([]error{err}, n) }

// RunBubble runs a subtest in virtual time.
func RunBubble(t *testing.T, name string, test func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { virtual.Test(t, test) })
}

// Events has the events that a hook received, from any goroutine.
type Events[E any] struct {
	mu  sync.Mutex
	all []E
}

// Add is the hook.
func (l *Events[E]) Add(e E) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, e)
}

// All returns the events.
func (l *Events[E]) All() []E {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.all)
}

// Take returns the events since the last call.
func (l *Events[E]) Take() []E {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := l.all
	l.all = nil
	return all
}

// Token returns the n-th token of a system whose counter started with the tests.
func Token(n int64) interlock.Token { return token(interlock.CounterAt(virtual.Began) + n) }

// Present returns a token for a process that starts now.
func Present() interlock.Token { return token(interlock.CounterAt(time.Now())) }

func token(counter int64) interlock.Token {
	t, err := interlock.NewToken(counter, 0)
	if err != nil {
		panic(err)
	}
	return t
}

// A Claim lasts until End is called, or until Expired is set, which ends no context.
type Claim struct {
	End     context.CancelCauseFunc
	Expired atomic.Bool

	token interlock.Token
	ctx   context.Context
}

// Grant returns the n-th claim.
func Grant(n int64) *Claim { return Owner(context.Background(), Token(n)) }

// Owner returns the claim of a token, which also ends with ctx.
func Owner(ctx context.Context, token interlock.Token) *Claim {
	c := &Claim{token: token}
	c.ctx, c.End = context.WithCancelCause(ctx)
	return c
}

// Name returns the name of every shard.
func (c *Claim) Name() string { return "shard" }

// Owner returns the same owner for all claims.
func (c *Claim) Owner() string { return "tester" }

// Token returns the token of the grant.
func (c *Claim) Token() interlock.Token { return c.token }

// Context ends with the claim.
func (c *Claim) Context() context.Context { return c.ctx }

// Valid reports whether the claim has neither ended nor expired.
func (c *Claim) Valid() bool { return !c.Expired.Load() && c.ctx.Err() == nil }

// Remaining returns a minute while the claim is valid.
func (c *Claim) Remaining() time.Duration {
	if c.Valid() {
		return time.Minute
	}
	return 0
}

// Run serves all shards under a claim of a process that starts now, until stop. It begins again after
// an error, as txn.Runtime does: the store may end a session of a busy process.
func Run(ctx context.Context, run func(ctx context.Context, c interlock.Claim) error) (stop func()) {
	c, ended := Owner(ctx, Present()), make(chan struct{})
	go func() { // until stop
		defer close(ended)
		for c.ctx.Err() == nil {
			_ = run(ctx, c)
			time.Sleep(10 * time.Millisecond)
		}
	}()
	return func() { c.End(interlock.ErrReleased); <-ended }
}

// Serve serves shard 0 under the n-th claim, in a [Bubble], until the test or stop ends it.
func Serve(t testing.TB, serve func(ctx context.Context, c interlock.Claim, shard int) error, n int64) (c *Claim, stop context.CancelFunc, served chan error) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	c, served = Grant(n), make(chan error, 1)
	go func() { served <- serve(ctx, c, 0) }()
	synctest.Wait()
	t.Cleanup(func() {
		stop()
		c.End(interlock.ErrReleased)
		synctest.Wait()
	})
	return c, stop, served
}

// Yields lets owners of shard 0 give it away one after the other, in a [Bubble], 10 s after each has begun
// to serve. foreign begins a transaction that they do not know, which is the reason.
func Yields(t testing.TB, serve func(ctx context.Context, c interlock.Claim, shard int) error, foreign func(id string) error) {
	t.Helper()
	for n := int64(2); n < 17; n++ {
		_, _, served := Serve(t, func(ctx context.Context, c interlock.Claim, shard int) error {
			return serve(ctx, yielding{c.(*Claim)}, shard)
		}, n)
		OK(t, foreign(fmt.Sprint("foreign ", n)))
		<-served
	}
}

// yielding is a claim that another process always takes.
type yielding struct{ *Claim }

func (yielding) Contended() bool { return true }

func (c yielding) Yield(context.Context) error {
	c.End(interlock.ErrReleased)
	return nil
}

// ErrCrashed is the error of every operation in a process that has crashed. It is not Definite, so
// nothing may be concluded from it.
var ErrCrashed = errors.New("crashed")

// Points counts the places where a process can crash or stop, from 1. From the chosen one on, the
// process has no effect, or none until Wake is closed. nil means that none is chosen.
type Points struct {
	Reached chan struct{} // closed at the chosen one
	Wake    chan struct{} // the test closes it to resume a stopped process; nil if the process crashes

	mu     sync.Mutex
	chosen int // 0 means none
	passed int
	dead   bool
}

// CrashAt returns points of a process that crashes at the n-th; 0 means none.
func CrashAt(n int) *Points { return &Points{chosen: n, Reached: make(chan struct{})} }

// StopAt returns points of a process that stops at the n-th until Wake is closed.
func StopAt(n int) *Points {
	return &Points{chosen: n, Reached: make(chan struct{}), Wake: make(chan struct{})}
}

// Pass passes a point. It returns an error if the process has crashed.
func (p *Points) Pass() error {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	if !p.dead {
		p.passed++
		if p.passed == p.chosen {
			p.dead = p.Wake == nil
			close(p.Reached)
		}
	}
	p.mu.Unlock()
	if p.Over() {
		return ErrCrashed
	}
	return nil
}

// Over reports whether the process has crashed. If it is stopped, Over blocks until Wake is closed.
func (p *Points) Over() bool {
	if p == nil {
		return false
	}
	p.mu.Lock()
	dead, stopped := p.dead, p.Wake != nil && p.passed >= p.chosen
	p.mu.Unlock()
	if stopped {
		<-p.Wake
	}
	return dead
}

// Passed returns the number of passed points.
func (p *Points) Passed() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.passed
}

// Live serves shard 0 under a claim while do runs, in a [Bubble]. The context of do ends when the
// process crashes.
func (p *Points) Live(serve func(ctx context.Context, c interlock.Claim, shard int) error, c *Claim, do func(ctx context.Context)) {
	ctx, stop := context.WithCancelCause(context.Background())
	var work sync.WaitGroup
	work.Go(func() { _ = serve(ctx, c, 0) })
	work.Go(func() {
		select {
		case <-p.Reached:
			if p.Over() {
				stop(ErrCrashed)
			}
		case <-ctx.Done():
		}
	})
	synctest.Wait()
	do(ctx)
	stop(nil)
	work.Wait()
}

// Journal is a process's view of a memory journal. It counts appends and reads, and passes a point
// before and after each append.
type Journal struct {
	*memory.Journal
	Points *Points
	Fail   func(n int, a driver.Append) (before, after error) // of the n-th append; nil fails none

	mu             sync.Mutex
	appends, reads int
}

// NewJournal returns a new journal without points.
func NewJournal() *Journal { return &Journal{Journal: memory.NewJournal()} }

// Appends returns the number of appends.
func (j *Journal) Appends() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.appends
}

// Reads returns the number of reads.
func (j *Journal) Reads() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.reads
}

// Append sends each append separately.
func (j *Journal) Append(ctx context.Context, appends []driver.Append) []error {
	errs := make([]error, len(appends))
	for i := range appends {
		errs[i] = j.append(ctx, appends[i:i+1])
	}
	return errs
}

func (j *Journal) append(ctx context.Context, one []driver.Append) error {
	if err := j.Points.Pass(); err != nil {
		return err
	}
	j.mu.Lock()
	j.appends++
	n := j.appends
	j.mu.Unlock()
	var before, after error
	if j.Fail != nil {
		before, after = j.Fail(n, one[0])
	}
	if before != nil {
		return before
	}
	err := j.Journal.Append(ctx, one)[0]
	if after != nil {
		return after
	}
	if crashed := j.Points.Pass(); crashed != nil {
		return crashed
	}
	return err
}

// Claim fails after a crash.
func (j *Journal) Claim(ctx context.Context, shard int, epoch interlock.Token, by, until time.Time, limit int) ([]driver.Head, error) {
	if j.Points.Over() {
		return nil, ErrCrashed
	}
	return j.Journal.Claim(ctx, shard, epoch, by, until, limit)
}

// Enter fails after a crash.
func (j *Journal) Enter(ctx context.Context, shard int, epoch interlock.Token) error {
	if j.Points.Over() {
		return ErrCrashed
	}
	return j.Journal.Enter(ctx, shard, epoch)
}

// Read fails after a crash.
func (j *Journal) Read(ctx context.Context, id string, after int64) (driver.Head, []driver.Record, error) {
	if j.Points.Over() {
		return driver.Head{}, nil, ErrCrashed
	}
	j.mu.Lock()
	j.reads++
	j.mu.Unlock()
	return j.Journal.Read(ctx, id, after)
}

// Records returns the records of a transaction, as kind:step.
func Records(t testing.TB, store driver.Journal, id string) (all []string) {
	t.Helper()
	_, records, err := store.Read(context.Background(), id, 0)
	OK(t, err)
	for _, r := range records {
		all = append(all, r.Kind+":"+r.Step)
	}
	return all
}

// Unscheduled requires that each unfinished transaction has a due time.
func Unscheduled(t testing.TB, store driver.Journal) {
	t.Helper()
	if n, err := store.Unscheduled(context.Background()); n != 0 || err != nil {
		t.Errorf("%d unscheduled, %v", n, err)
	}
}

// ReadFile returns the text of a file.
func ReadFile(t testing.TB, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	OK(t, err)
	return string(text)
}

var block = regexp.MustCompile("(?ms)^```(\\w+)\n(.*?)^```\n")

// Page checks a page about a kit for users' tests: its Go blocks are in example_test.go, its only
// text block is report, and its table has a row for each kind of finding.
func Page[K ~string](t *testing.T, page, report string, kinds ...K) {
	t.Helper()
	source, shown := ReadFile(t, "example_test.go"), map[string]int{}
	for _, b := range block.FindAllStringSubmatch(page, -1) {
		shown[b[1]]++
		switch b[1] {
		case "go":
			if !strings.Contains(source, "\n"+b[2]) {
				t.Errorf("this is not in example_test.go:\n%s", b[2])
			}
		case "text":
			if b[2] != report {
				t.Errorf("it says\n%swant\n%s", b[2], report)
			}
		}
	}
	if shown["go"] < 2 || shown["text"] != 1 {
		t.Errorf("blocks: %v", shown)
	}
	for _, k := range kinds {
		if !strings.Contains(page, "| "+string(k)+" |") {
			t.Errorf("it does not describe %q", k)
		}
	}
}

const chosenCase = "TXNTEST_CASE"

// FailsOutside requires that run fails its test, and prints texts, for each case. Each case runs the
// same test in its own process. White space does not count.
func FailsOutside(t *testing.T, run func(name string), cases map[string][]string) {
	t.Helper()
	if name := os.Getenv(chosenCase); name != "" {
		run(name)
		return
	}
	for name, texts := range cases {
		test := t.Name()
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^"+test+"$")
			cmd.Env = append(os.Environ(), chosenCase+"="+name)
			out, err := cmd.CombinedOutput()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || !strings.Contains(string(out), "--- FAIL: "+test) {
				t.Fatalf("%v\n%s", err, out)
			}
			printed := strings.Join(strings.Fields(string(out)), " ")
			for _, want := range texts {
				if !strings.Contains(printed, want) {
					t.Errorf("it does not print %q:\n%s", want, out)
				}
			}
		})
	}
}
