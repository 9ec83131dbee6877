package rehearsal

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/virtual"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/coordinator"
)

// A Trial is a transaction that runs in a scenario.
type Trial[K ~string] struct {
	Scenario[K]
	Show func() any             // the world
	Skip func(line string) bool // lines of it that do not count; nil means none
	Life *Life                  // of the present coordinator

	Mu      sync.Mutex // guards the following fields during calls
	calls   map[CallID]int
	Answers []Answer
	Last    string // step or branch of the last call
	Err     error  // why there is no result

	Initial, Before, After, Late, Final []string // the world, and that around the step or branch that runs alone
	Hangs                               bool     // a call does not return
	CrashedAt                           *Point
}

// An Answer is the result of a function of the user.
type Answer struct {
	Transaction, Name string
	Operation         branch.Operation
	Err               error
}

// Refuses reports whether the answer is a branch.Fail.
func (a Answer) Refuses() bool {
	class, _ := branch.ClassOf(a.Err)
	return a.Err != nil && class == branch.ClassFail
}

// Base returns the trial.
func (r *Trial[K]) Base() *Trial[K] { return r }

// See returns the world.
func (r *Trial[K]) See() []string { return r.Lines(r.Show) }

// Lines returns the lines of a snapshot.
func (r *Trial[K]) Lines(show func() any) (lines []string) {
	err := errors.New("the scene has no Snapshot; give it a function that shows its world")
	if show != nil {
		lines, err = Lines(show(), r.Skip)
	}
	r.Mu.Lock()
	defer r.Mu.Unlock()
	if r.Err == nil {
		r.Err = err
	}
	return lines
}

// Begin counts a call, and returns its fault.
func (r *Trial[K]) Begin(name string, o branch.Operation) (d CallID, m Fault) {
	r.Mu.Lock()
	if r.calls == nil {
		r.calls = map[CallID]int{}
	}
	d = CallID{Name: name, Operation: o}
	r.calls[d]++
	d.N = r.calls[d]
	r.Last = name
	r.Mu.Unlock()
	if r.FaultOf != nil {
		m = r.FaultOf(d)
	}
	return d, m
}

// Answered records an answer.
func (r *Trial[K]) Answered(a Answer) {
	r.Mu.Lock()
	defer r.Mu.Unlock()
	r.Answers = append(r.Answers, a)
}

// Delivered returns how often an operation of the scenario's step or branch arrived.
func (r *Trial[K]) Delivered(o branch.Operation) (n int) {
	for _, a := range r.Answers {
		if a.Name == r.Name && a.Operation == o {
			n++
		}
	}
	return n
}

// Unended returns why a transaction in a state has not ended; name is that of the last call if it failed.
func (r *Trial[K]) Unended(state string) (name, problem string) {
	if r.Hangs {
		return "", "a call does not return when its context ends, or leaves a goroutine that waits for ever"
	}
	if i := len(r.Answers) - 1; i >= 0 && r.Answers[i].Err != nil {
		return r.Answers[i].Name, fmt.Sprintf("%s, and the last call said: %v", state, r.Answers[i].Err)
	}
	return "", state
}

// Lives runs coordinators until one does not crash.
func (r *Trial[K]) Lives(live func(n int64) error) {
	if r.Initial = r.See(); r.Err != nil {
		return
	}
	for n := int64(1); r.Err == nil && !r.Hangs; n++ {
		r.Life = &Life{}
		if n == 1 {
			r.Life.Chosen = r.Crash
		}
		if r.Err = live(n); r.Err != nil || r.Life.Crashed() == nil {
			break
		}
		r.CrashedAt = r.Life.Crashed()
	}
	r.Final = r.See()
}

// Live runs the n-th coordinator, made by open, until drive has returned. The context of drive ends with
// the coordinator, and after limit. A coordinator that does not end within patience hangs. cause is why
// it has ended.
func (r *Trial[K]) Live(n int64, limit, patience time.Duration, j Journal,
	open func(ctx context.Context, j Journal) (*coordinator.Coordinator, func(), error), drive func(ctx context.Context)) (cause, err error) {
	ctx, stop := context.WithTimeoutCause(context.Background(), limit, errors.New("the run took too long"))
	defer stop()
	ctx, r.Life.End = context.WithCancelCause(ctx)
	defer r.Life.End(nil)
	ready := make(chan struct{})
	j.Life, j.Serving = r.Life, sync.OnceFunc(func() { close(ready) })
	c, closed, err := open(ctx, j)
	if err != nil {
		return nil, err
	}
	defer closed()
	owner, err := Grant(ctx, n)
	if err != nil {
		return nil, err
	}
	served := make(chan error, 1)
	go func() { served <- c.Serve(ctx, owner, 0) }()
	select {
	case <-ready:
	case <-ctx.Done():
	}
	drive(ctx)
	r.Life.End(nil)
	select {
	case cause = <-served:
	case <-time.After(patience):
		r.Hangs = true
	}
	return cause, nil
}

// began is the start of virtual time, so that tokens are plausible.
var began = time.Now()

// claim is a coordinator's claim on its journal. It ends with the coordinator.
type claim struct {
	token interlock.Token
	ctx   context.Context
}

// Grant returns the claim of the n-th coordinator, which ends with ctx.
func Grant(ctx context.Context, n int64) (interlock.Claim, error) {
	token, err := interlock.NewToken(interlock.CounterAt(began)+n, 0)
	return claim{token, ctx}, err
}

func (c claim) Name() string             { return "explored" }
func (c claim) Owner() string            { return "rehearsal" }
func (c claim) Token() interlock.Token   { return c.token }
func (c claim) Context() context.Context { return c.ctx }
func (c claim) Valid() bool              { return c.ctx.Err() == nil }
func (c claim) Remaining() time.Duration {
	if c.Valid() {
		return time.Minute
	}
	return 0
}

// CatchPanic returns a panic as an error of unknown outcome.
func CatchPanic[O any](ctx context.Context, call func(ctx context.Context) (O, error)) (output O, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("panic: %v", cause)
		}
	}()
	return call(ctx)
}

// Late makes a call that arrives after its caller has given up.
func Late[O any](ctx context.Context, call func(ctx context.Context) (O, error)) (O, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	return CatchPanic(ctx, call)
}

// Deliver makes a call as often as it arrives. answered receives each answer.
func Deliver[O any](ctx context.Context, m Fault, call func(ctx context.Context) (O, error), answered func(error)) (output O, err error) {
	if m.Absent {
		return output, nil
	}
	output, err = CatchPanic(ctx, call)
	answered(err)
	if m.Twice {
		_, again := CatchPanic(ctx, call)
		answered(again)
	}
	return output, err
}

// Between makes a call between two crash points; p.Words names the call.
func Between[O any](l *Life, p Point, call func() (O, error)) (output O, err error) {
	before, after := p, p
	before.Words, after.Words = "before the call of "+p.Words, "before the answer of "+p.Words
	if err := l.Pass(before); err != nil {
		return output, err
	}
	output, err = call()
	if crashed := l.Pass(after); crashed != nil {
		var none O
		return none, crashed
	}
	return output, err
}

// Bubble runs play in the virtual time of [testing/synctest], which begins at the present. It reports
// whether a goroutine in it waits for ever.
func Bubble(t *testing.T, play func()) (hangs bool) {
	t.Helper()
	defer func() { hangs = deadlocked(recover()) }()
	virtual.Test(t, func(*testing.T) {
		time.Sleep(time.Until(began))
		play()
	})
	return false
}

// deadlocked reports whether a panic of synctest means that a goroutine in the bubble waits for ever.
func deadlocked(cause any) bool {
	err, is := cause.(error)
	if cause != nil && !(is && strings.HasPrefix(err.Error(), "deadlock")) {
		panic(cause)
	}
	return cause != nil
}
