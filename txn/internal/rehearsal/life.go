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

// ErrCrashed is what everything ends with in a coordinator that has crashed. It is not
// Definite: nothing may be concluded from it.
var ErrCrashed = errors.New("the coordinator has crashed")

// Patience is that of the journal of a coordinator that may crash: in real time each
// crash before a transaction has begun takes as long.
const Patience = time.Second / 2

// A Point is where a coordinator can crash.
type Point struct {
	Words     string
	Name      string           // of the step or branch of which a call is made or answered; empty at an append
	Operation branch.Operation // of that call
}

// A Life is that of a coordinator that crashes at one of the points that it passes:
// from there on nothing that it does has an effect. It is safe for concurrent use.
type Life struct {
	Chosen int                     // the point, from 1; 0 is none
	End    context.CancelCauseFunc // ends the coordinator when it crashes

	mu      sync.Mutex
	passed  int
	appends int
	at      *Point
}

// Pass passes a point; the error is that of a coordinator that has crashed.
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

// Crashed is the point where it has crashed; nil is nowhere.
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

// Journal is a journal as a coordinator sees it that can crash.
type Journal struct {
	driver.Journal
	Life *Life
	// Left receives when a transaction is due that was appended to; nil disables it.
	Left func(due time.Time)
	// Serving is called when the coordinator looks for what is unfinished: what begins
	// before is taken for something that somebody else has driven.
	Serving func()
}

// Due is what a coordinator asks once it serves.
func (j Journal) Due(ctx context.Context, shard int, behind driver.Head, limit int) ([]driver.Head, error) {
	defer j.Serving()
	return j.Journal.Due(ctx, shard, behind, limit)
}

// Append passes a point before and after.
func (j Journal) Append(ctx context.Context, appends []driver.Append) []error {
	n := j.Life.nextAppend()
	err := j.Life.Pass(Point{Words: fmt.Sprintf("before its append %d to the journal", n)})
	var errs []error
	if err == nil {
		errs = j.Journal.Append(ctx, appends)
		if j.Left != nil {
			j.Left(appends[0].Due) // there is one transaction
		}
		err = j.Life.Pass(Point{Words: fmt.Sprintf("right after its append %d to the journal", n)})
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

// Open makes a coordinator on a journal. closed ends it.
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
