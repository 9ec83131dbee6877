package sagatest

import (
	"sync"
	"time"
)

// alarm has a saga looked at when it is due, in place of a poll: days of virtual time
// would be many polls. What is due behind the limit was put off for the case that its
// engine dies, and not left alone.
type alarm struct {
	limit time.Duration
	ring  func()

	mu     sync.Mutex
	timers []*time.Timer
	over   bool
}

func (a *alarm) set(due time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if wait := time.Until(due); !a.over && !due.IsZero() && wait <= a.limit {
		a.timers = append(a.timers, time.AfterFunc(wait, a.ring))
	}
}

func (a *alarm) stop() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.over = true
	for _, t := range a.timers {
		t.Stop()
	}
}
