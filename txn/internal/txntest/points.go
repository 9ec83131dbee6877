package txntest

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
)

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

// StopsWith calls stop when the process crashes. It returns after that, or when ctx ends.
func (p *Points) StopsWith(ctx context.Context, stop context.CancelCauseFunc) {
	select {
	case <-p.Reached:
		if p.Over() {
			stop(ErrCrashed)
		}
	case <-ctx.Done():
	}
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
func Records(t testing.TB, store *memory.Journal, id string) (all []string) {
	t.Helper()
	_, records, err := store.Read(context.Background(), id, 0)
	OK(t, err)
	for _, r := range records {
		all = append(all, r.Kind+":"+r.Step)
	}
	return all
}

// Unscheduled requires that each unfinished transaction has a due time.
func Unscheduled(t testing.TB, store *memory.Journal) {
	t.Helper()
	if n, err := store.Unscheduled(context.Background()); n != 0 || err != nil {
		t.Errorf("%d unscheduled, %v", n, err)
	}
}
