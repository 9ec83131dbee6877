package rehearsal

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
)

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
