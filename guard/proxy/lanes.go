package proxy

import (
	"context"
	"errors"
	"sync"

	"github.com/interlock-dev/interlock"
)

// lanes let one caller at a time use a resource, in the order of arrival. A lane exists while
// it has callers.
type lanes struct {
	most int // maximum per lane
	mu   sync.Mutex
	busy map[string]*lane
}

type lane struct {
	turn chan struct{} // full while a caller has the turn
	in   int
}

// enter waits for the turn, until ctx ends.
func (l *lanes) enter(ctx context.Context, resource string) (leave func(), err error) {
	at, err := l.join(resource)
	if err != nil {
		return nil, err
	}
	select {
	case at.turn <- struct{}{}:
		return func() { <-at.turn; l.part(resource, at) }, nil
	case <-ctx.Done():
		l.part(resource, at)
		return nil, &interlock.Error{Op: "wait for turn", Name: resource, Kind: interlock.Definite, Err: context.Cause(ctx)}
	}
}

func (l *lanes) join(resource string) (*lane, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := l.busy[resource]
	if at == nil {
		at = &lane{turn: make(chan struct{}, 1)}
		l.busy[resource] = at
	}
	if at.in >= l.most {
		return nil, &interlock.Error{Op: "wait for turn", Name: resource, Kind: interlock.Retryable,
			Err: errors.New("too many calls wait already")}
	}
	at.in++
	return at, nil
}

func (l *lanes) part(resource string, at *lane) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if at.in--; at.in == 0 {
		delete(l.busy, resource)
	}
}
