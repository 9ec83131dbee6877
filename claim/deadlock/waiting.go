package deadlock

import (
	"context"
	"time"
)

// A Waiter is a task that holds something and waits for something else, as its process has
// published it.
type Waiter struct {
	Task   string // its name
	Awaits string // the name of the resource
	Holds  []string
	Since  time.Time // when the task began, by the clock of its process
}

// Waiters reads who waits long for what is on a board. They need not be in a deadlock, and
// notes of crashed processes last up to half a minute. It returns those that it understands,
// and an error if there are others.
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
