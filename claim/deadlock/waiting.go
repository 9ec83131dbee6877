package deadlock

import (
	"context"
	"time"
)

// A Waiter is a task that holds a resource and waits for another one, as published by its
// process.
type Waiter struct {
	Task   string // the name of the task
	Awaits string // the name of the resource
	Holds  []string
	Since  time.Time // when the task began, by the clock of its process
}

// Waiters reads the long waits from a board. They need not be part of a deadlock, and notes of
// crashed processes last up to half a minute. It returns the valid notes, and an error if
// others are invalid.
func Waiters(ctx context.Context, board Board) (all []Waiter, err error) {
	s := &sight{}
	if err := s.read(ctx, board); err != nil {
		return nil, err
	}
	for _, kv := range s.notes {
		n, wrong := parse(kv.Value)
		if wrong != nil {
			err = wrong
			continue
		}
		if n.Awaits != "" {
			all = append(all, Waiter{n.Task, n.Awaits, n.Holds, time.UnixMicro(n.Links[0].Rank.Began)})
		}
	}
	return all, err
}
