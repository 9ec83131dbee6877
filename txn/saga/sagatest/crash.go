package sagatest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/interlock-dev/interlock/driver"
)

// errCrashed is what everything ends with in an engine that has crashed. It is not
// Definite: the engine may conclude nothing from it.
var errCrashed = errors.New("the engine has crashed")

// A point is where an engine can crash.
type point struct {
	words string
	step  string // of which a call is made or answered; empty at an append
	undo  bool
}

// life is an engine that crashes at one of the points that it passes: from there on
// nothing that it does has an effect.
type life struct {
	chosen int // from 1; 0 is none
	end    context.CancelCauseFunc

	mu      sync.Mutex
	passed  int
	appends int
	at      point // where it has crashed
	dead    bool
}

func (l *life) pass(p point) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dead {
		return errCrashed
	}
	if l.passed++; l.passed != l.chosen {
		return nil
	}
	l.dead, l.at = true, p
	l.end(errCrashed)
	return errCrashed
}

func (l *life) crashed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dead
}

func (l *life) nextAppend() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.appends++
	return l.appends
}

// crashing is the journal as an engine sees it that can crash. It tells when a saga is
// due that the engine has left alone, and when the engine looks for what is unfinished:
// a saga that begins before is taken for one that somebody else has driven.
type crashing struct {
	driver.Journal
	life    *life
	due     func(time.Time)
	serving func()
}

// Due is what an engine asks once it serves.
func (c crashing) Due(ctx context.Context, shard int, behind driver.Head, limit int) ([]driver.Head, error) {
	defer c.serving()
	return c.Journal.Due(ctx, shard, behind, limit)
}

// Append passes a point before and after.
func (c crashing) Append(ctx context.Context, appends []driver.Append) []error {
	n := c.life.nextAppend()
	err := c.life.pass(point{words: fmt.Sprintf("before its append %d to the journal", n)})
	var errs []error
	if err == nil {
		errs = c.Journal.Append(ctx, appends)
		c.due(appends[0].Due) // there is one saga
		err = c.life.pass(point{words: fmt.Sprintf("right after its append %d to the journal", n)})
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
