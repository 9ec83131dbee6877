package rehearsal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/virtual"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/internal/txntest"
	"github.com/interlock-dev/interlock/txn/journal"
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
	served := make(chan error, 1)
	go func() { served <- c.Serve(ctx, txntest.Owner(ctx, txntest.Token(n)), 0) }()
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

// Bubble runs play in virtual time, and reports whether a goroutine in it waits for ever.
func Bubble(t *testing.T, play func()) (hangs bool) {
	t.Helper()
	defer func() { hangs = deadlocked(recover()) }()
	virtual.Test(t, func(*testing.T) { play() })
	return false
}

// deadlocked reports whether a panic of synctest means that a goroutine in the bubble waits for ever.
func deadlocked(cause any) bool {
	err, ok := cause.(error)
	if cause != nil && !(ok && strings.HasPrefix(err.Error(), "deadlock")) {
		panic(cause)
	}
	return cause != nil
}

// ErrCrashed is the error of every operation in a coordinator that has crashed. It is not Definite, so
// nothing may be concluded from it.
var ErrCrashed = errors.New("the coordinator has crashed")

// Patience is Options.Patience of the journal of a coordinator that may crash. In real time each crash
// before a transaction has begun takes that long.
const Patience = time.Second / 2

// A Point is a place where a coordinator can crash.
type Point struct {
	Words     string
	Name      string           // of the called step or branch; empty for an append
	Operation branch.Operation // of that call
}

// A Life is the run of one coordinator, which crashes at a chosen point. After that nothing that it does
// has an effect. It is safe for concurrent use.
type Life struct {
	Chosen int                     // the point, from 1; 0 means none
	End    context.CancelCauseFunc // ends the coordinator when it crashes

	mu      sync.Mutex
	passed  int
	appends int
	at      *Point
}

// Pass passes a point. It returns an error if the coordinator has crashed.
func (l *Life) Pass(p Point) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.at != nil {
		return ErrCrashed
	}
	if l.passed++; l.passed != l.Chosen {
		return nil
	}
	l.at = &p
	l.End(ErrCrashed)
	return ErrCrashed
}

// Crashed returns the point where the coordinator has crashed, or nil.
func (l *Life) Crashed() *Point {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.at
}

func (l *Life) nextAppend() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.appends++
	return l.appends
}

// Journal is a journal as seen by a coordinator that can crash.
type Journal struct {
	driver.Journal
	Life *Life
	// Left receives the due time after each append; nil disables it.
	Left func(due time.Time)
	// Serving is called when the coordinator reads unfinished transactions. One that begins before counts as driven by another coordinator.
	Serving func()
}

// Due calls Serving afterwards.
func (j Journal) Due(ctx context.Context, shard int, behind driver.Head, limit int) ([]driver.Head, error) {
	defer j.Serving()
	return j.Journal.Due(ctx, shard, behind, limit)
}

// Append passes a point before and after.
func (j Journal) Append(ctx context.Context, appends []driver.Append) []error {
	n := j.Life.nextAppend()
	err := j.Life.Pass(Point{Words: fmt.Sprintf("before append %d to the journal", n)})
	var errs []error
	if err == nil {
		errs = j.Journal.Append(ctx, appends)
		if j.Left != nil {
			j.Left(appends[0].Due) // of the only transaction
		}
		err = j.Life.Pass(Point{Words: fmt.Sprintf("after append %d to the journal", n)})
	}
	if err == nil {
		return errs
	}
	errs = make([]error, len(appends))
	for i := range errs {
		errs[i] = err
	}
	return errs
}

// Open returns a coordinator on a journal. closed closes it.
func Open(j driver.Journal, o coordinator.Options, realTime bool) (c *coordinator.Coordinator, closed func(), err error) {
	opened, err := journal.New(j, &journal.Options{Shards: 1, Patience: Patience})
	if err != nil {
		return nil, nil, err
	}
	o.Random = func() float64 { return 0.5 }
	if realTime {
		o.Random = func() float64 { return 0 }
	}
	closed = func() { _ = opened.Close() }
	if c, err = coordinator.New(opened, &o); err != nil {
		closed()
	}
	return c, closed, err
}

// Values are the values of fakes, by key; a missing value is empty.
type Values map[string]string

// Add adds to the number of a key, from 0, and returns the sum. It panics if the value is not a number.
func (v Values) Add(key string, n int) int {
	sum := n
	if text := v[key]; text != "" {
		old, err := strconv.Atoi(text)
		if err != nil {
			panic(fmt.Sprintf("the value of %q is %q, and not a number", key, text))
		}
		sum += old
	}
	v[key] = strconv.Itoa(sum)
	return sum
}

// Draft returns a copy that can be changed; also of nil.
func (v Values) Draft() Values {
	draft := Values{}
	maps.Copy(draft, v)
	return draft
}

// Text returns the values, one a line, in the order of their keys. It omits those that are empty or 0,
// which Add does not distinguish from missing ones.
func (v Values) Text() string {
	var b strings.Builder
	for _, key := range slices.Sorted(maps.Keys(v)) {
		if value := v[key]; value != "" && value != "0" {
			fmt.Fprintf(&b, "%s: %s\n", key, value)
		}
	}
	return b.String()
}

// Lines returns the lines of a snapshot, a string or a value written as JSON, without ignored lines; a
// nil ignore keeps all.
func Lines(shown any, ignore func(line string) bool) ([]string, error) {
	text, ok := shown.(string)
	if !ok {
		indented, err := json.MarshalIndent(shown, "", "  ")
		if err != nil {
			return nil, fmt.Errorf("write the snapshot as JSON: %w", err)
		}
		text = string(indented)
	}
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	if ignore != nil {
		lines = slices.DeleteFunc(lines, ignore)
	}
	return lines, nil
}

// mostLines bounds the lines of a difference.
const mostLines = 30

// Diff returns the lines that differ between two texts, in their order: missing ones with a -, additional
// ones with a +. It is empty if they are the same.
func Diff(want, got []string) string {
	for len(want) > 0 && len(got) > 0 && want[0] == got[0] {
		want, got = want[1:], got[1:]
	}
	for len(want) > 0 && len(got) > 0 && want[len(want)-1] == got[len(got)-1] {
		want, got = want[:len(want)-1], got[:len(got)-1]
	}
	lines := changes(want[:min(len(want), 10*mostLines)], got[:min(len(got), 10*mostLines)])
	if len(lines) > mostLines {
		lines = append(lines[:mostLines], "…")
	}
	return strings.Join(lines, "\n")
}

// changes returns the lines outside a longest common subsequence.
func changes(want, got []string) (lines []string) {
	common := make([][]int, len(want)+1) // of want[i:] and got[j:]
	for i := range common {
		common[i] = make([]int, len(got)+1)
	}
	for i := range slices.Backward(want) {
		for j := range slices.Backward(got) {
			if common[i][j] = max(common[i+1][j], common[i][j+1]); want[i] == got[j] {
				common[i][j] = common[i+1][j+1] + 1
			}
		}
	}
	i, j := 0, 0
	for i < len(want) || j < len(got) {
		switch {
		case i < len(want) && j < len(got) && want[i] == got[j]:
			i, j = i+1, j+1
		case j == len(got) || i < len(want) && common[i+1][j] >= common[i][j+1]:
			lines = append(lines, "- "+want[i])
			i++
		default:
			lines = append(lines, "+ "+got[j])
			j++
		}
	}
	return lines
}
