package outbox

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/hints"
	"github.com/interlock-dev/interlock/internal/sqltable"
)

// Status is the state of an outbox; the isolation level of the transaction decides whether it is a
// snapshot. Times are by the clock of the database.
type Status struct {
	Slices  []SliceStatus // while their number is lowered, also former slices that are not empty
	Oldest  time.Duration // since the oldest undelivered message was added; 0 if there is none
	Dead    int64         // dead letters
	Keys    int64         // keys that wait for an undelivered or delayed message
	Waiting []Waiting     // the hundred keys that have waited longest
}

// SliceStatus is the state of one slice.
type SliceStatus struct {
	Slice  int
	Ready  int64           // messages that do not wait
	Parked int64           // messages that wait with their key
	Oldest time.Duration   // as in [Status]
	Owner  string          // of the last claim that served it; empty if there was none
	Token  interlock.Token // of that claim
	Since  time.Time       // first use of the token; zero if there was none
}

// Waiting is a key that waits, or a message without a key.
type Waiting struct {
	Slice      int
	Topic, Key string
	ID         string // of the message that it waits for
	Why        string // WhyRetry, WhyBlocked, WhyDead or WhyDelayed
	Attempts   int    // of that message
	LastError  string
	Since      time.Time // begin of the wait
	Until      time.Time // next attempt; zero if it waits for a dead letter
	Messages   int64     // that wait
}

// Status returns the state of the outbox. It counts all messages.
func (t Table) Status(ctx context.Context, db driver.SQL) (Status, error) {
	const op = "show outbox"
	s, err := t.open(op, db)
	if err != nil {
		return Status{}, err
	}
	l, err := s.layout(ctx, "")
	if err != nil {
		return Status{}, err
	}
	status := Status{Slices: make([]SliceStatus, l.Slices)}
	for _, step := range []func(context.Context, *Status) error{s.showSlices, s.showOwners, s.showWaiting, s.showCounts} {
		if err := step(ctx, &status); err != nil {
			return Status{}, s.failed(err)
		}
	}
	return status, nil
}

func (s store) showSlices(ctx context.Context, to *Status) error {
	return s.Each(ctx, `select slice, sum(case when parked = true then 0 else 1 end), sum(case when parked = true then 1 else 0 end),
		{micros start} - min(added) from {messages} group by slice`, nil, func(scan func(...any) error) error {
		var v SliceStatus
		var oldest int64
		if err := scan(&v.Slice, &v.Ready, &v.Parked, &oldest); err != nil {
			return err
		}
		if v.Slice < 0 || v.Slice >= MaxSlices {
			return fmt.Errorf("a message is in slice %d of %d", v.Slice, len(to.Slices))
		}
		if more := v.Slice + 1 - len(to.Slices); more > 0 { // not moved yet
			to.Slices = append(to.Slices, make([]SliceStatus, more)...)
		}
		v.Oldest = max(0, micros(oldest))
		to.Slices[v.Slice] = v
		to.Oldest = max(to.Oldest, v.Oldest)
		return nil
	})
}

func (s store) showOwners(ctx context.Context, to *Status) error {
	for i := range to.Slices {
		m, err := s.table.fence().Show(ctx, s.SQL(), s.table.resource(i))
		if err != nil {
			return err
		}
		v := &to.Slices[i]
		v.Slice, v.Owner, v.Token, v.Since = i, m.Source, m.Token, m.Raised
	}
	return nil
}

func (s store) showWaiting(ctx context.Context, to *Status) error {
	return s.Each(ctx, `select l.slice, l.topic, l.msg_key, l.message_id, l.why, l.attempts, l.last_error, l.since, l.wait_until,
		(select count(*) from {messages} m where m.lane = l.lane and m.parked = true)
		from {lanes} l where l.why <> '`+WhyQueued+`' order by l.since, l.lane limit 100`, nil, func(scan func(...any) error) error {
		var w Waiting
		var since, until int64
		if err := scan(&w.Slice, &w.Topic, &w.Key, &w.ID, &w.Why, &w.Attempts, &w.LastError, &since, &until, &w.Messages); err != nil {
			return err
		}
		w.Since = time.UnixMicro(since).UTC()
		if w.Why != WhyDead {
			w.Until = time.UnixMicro(until).UTC()
		}
		to.Waiting = append(to.Waiting, w)
		return nil
	})
}

func (s store) showCounts(ctx context.Context, to *Status) error {
	_, err := s.Row(ctx, `select (select count(*) from {dead}), (select count(*) from {lanes} where why <> '`+WhyQueued+`')`, nil, &to.Dead, &to.Keys)
	return err
}

// watch wakes waiting services that have messages to send, until ctx ends. A wake is a hint: the
// service reads the table, and after a long time it does so without a wake. begins receives when a
// service begins to wait.
func (r *Relay) watch(ctx context.Context, begins <-chan struct{}) {
	found, changes := r.options.now(), -1
	for {
		var pause <-chan time.Time
		waits, announced := begins, false
		if len(r.waiting(false)) > 0 {
			pause, waits = time.After(r.options.poll(r.options.now().Sub(found))), nil
		}
		select {
		case <-pause:
		case <-r.announced:
			announced = true
		case <-waits:
			continue
		case <-ctx.Done():
			return
		}
		waiting := r.waiting(announced)
		if len(waiting) == 0 {
			continue
		}
		ready, now, err := r.probe(ctx, waiting)
		switch {
		case err != nil: // services get the same error, and report it
			ready = waiting
		case now != changes:
			ready, changes = waiting, now
		case len(ready) > 0 && !announced:
			found = r.options.now()
		}
		r.wake(ready)
	}
}

// poll returns the pause before the next poll if the polls found nothing for quiet: a quarter of that.
func (o Options) poll(quiet time.Duration) time.Duration {
	return min(max(quiet/4, o.MinPoll), o.MaxPoll)
}

// waiting returns the slices whose services wait. If there may be messages, the others look again.
func (r *Relay) waiting(announced bool) (all []int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for s, waits := range r.serving {
		if waits {
			all = append(all, int64(s.slice))
		} else if announced {
			s.wake()
		}
	}
	return all
}

// wait records that s waits, until end is called.
func (r *Relay) wait(s *service) (end func()) {
	note := func(waits bool) (begins chan struct{}) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.serving[s] = waits
		return r.waits
	}
	hints.Signal(note(true))
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
