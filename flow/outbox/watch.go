package outbox

import (
	"context"
	"slices"
	"time"

	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/internal/hints"
	"github.com/interlock-dev/interlock/internal/sqltable"
)

// watch wakes waiting services that have messages to send, until ctx ends. A wake is a hint: the
// service reads the table, and after a long time it does so without a wake.
func (r *Relay) watch(ctx context.Context) {
	found, changes := r.options.now(), -1
	for {
		if len(r.waiting()) == 0 {
			select {
			case <-r.waits:
				continue
			case <-ctx.Done():
				return
			}
		}
		if !backoff.Sleep(ctx, r.options.poll(r.options.now().Sub(found))) {
			return
		}
		waiting := r.waiting()
		if len(waiting) == 0 {
			continue
		}
		ready, now, err := r.probe(ctx, waiting)
		switch {
		case err != nil: // services get the same error, and report it
			ready = waiting
		case now != changes:
			ready, changes = waiting, now
		case len(ready) > 0:
			found = r.options.now()
		}
		r.wake(ready)
	}
}

// poll returns the pause before the next poll if the polls found nothing for quiet: a quarter of that.
func (o Options) poll(quiet time.Duration) time.Duration {
	return min(max(quiet/4, o.MinPoll), o.MaxPoll)
}

// waiting returns the slices whose services wait.
func (r *Relay) waiting() (all []int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for s, waits := range r.serving {
		if waits {
			all = append(all, int64(s.slice))
		}
	}
	return all
}

// wait records that s waits, until end is called.
func (r *Relay) wait(s *service) (end func()) {
	note := func(waits bool) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.serving[s] = waits
	}
	note(true)
	hints.Signal(r.waits)
	return func() { note(false) }
}

// wake wakes the services of slices.
func (r *Relay) wake(ready []int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for s := range r.serving {
		if slices.Contains(ready, int64(s.slice)) {
			r.serving[s] = false
			s.wake()
		}
	}
}

// probe returns which slices have a message to send or a due lane, and the number of changes of the
// layout. It is one statement, which reads one entry of two indexes for each slice.
func (r *Relay) probe(ctx context.Context, of []int64) (ready []int64, changes int, err error) {
	err = r.look(ctx, func(s store) error {
		query, args := s.probe(of)
		return s.Each(ctx, query, args, func(scan func(...any) error) error {
			var slice int64
			var value int
			if err := scan(&slice, &value); err != nil {
				return err
			}
			if slice < 0 {
				changes = value
			} else {
				ready = append(ready, slice)
			}
			return nil
		})
	})
	return ready, changes, err
}

func (s store) probe(of []int64) (query string, args []any) {
	from, force := `unnest(?::text::bigint[]) as d (slice)`, ``
	numbers := sqltable.Numbers(of)
	if s.Maria() {
		from, force = `json_table(?, '$[*]' columns (slice bigint path '$')) d`, ` force index (ready)`
		numbers = `[` + list(of) + `]`
	}
	return `select -1, slices from {layout} where one = 2 union all
		select d.slice, 0 from ` + from + ` where coalesce(
			(select 1 from {messages} o` + force + ` where o.slice = d.slice and o.parked = false order by o.id limit 1),
			(select 1 from {lanes} l where l.slice = d.slice and l.wait_until <= {micros start} order by l.wait_until limit 1)) = 1`, []any{numbers}
}
