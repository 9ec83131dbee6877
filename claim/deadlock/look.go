package deadlock

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	mathrand "math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/internal/report"
	"github.com/interlock-dev/interlock/observe"
)

const (
	request  = 2 * time.Second  // bound of the requests to a board in one round
	refresh  = 5 * time.Second  // a note is written again
	departed = 30 * time.Second // its writer has crashed
	closing  = 5 * time.Second  // bound of the last round
)

// retries is the pause before a board that failed is read again.
var retries = backoff.Policy{First: time.Second, Max: 30 * time.Second}

// run reads the boards while tasks of this process hold a resource and wait for another one. It
// ends when the detector is closed.
func (d *Detector) run() {
	timer := time.NewTimer(d.options.Delay)
	defer timer.Stop()
	for {
		select {
		case <-d.ctx.Done():
			ctx, cancel := context.WithTimeout(context.Background(), closing)
			defer cancel()
			for _, s := range d.sights {
				s.resting = 0 // the last round was interrupted
			}
			d.look(ctx, nil)
			return
		case <-d.wake:
		case <-timer.C:
		}
		tasks, more := d.waiting()
		d.look(d.ctx, tasks)
		if more || len(d.sights) > 0 {
			timer.Reset(d.options.Interval)
		}
	}
}

// waiting returns copies of the tasks that hold a resource and have waited for Delay, with
// these waits. more reports whether other tasks hold a resource and wait.
func (d *Detector) waiting() (long map[*member]*member, more bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	long = map[*member]*member{}
	now := boottime.Now()
	for m := range d.tasks {
		if len(m.holds) == 0 || len(m.waits) == 0 {
			continue
		}
		more = true
		c := &member{id: m.id, name: m.name, rank: m.rank, holds: maps.Clone(m.holds), waits: map[int64]Resource{}}
		for number, r := range m.waits {
			if now.Sub(m.begun[number]) >= d.options.Delay {
				c.waits[number] = r
			}
		}
		if len(c.waits) > 0 {
			long[m] = c
		}
	}
	return long, more
}

// look reads the boards of tasks, ends waits, and publishes what other processes need. A board
// without notes of this detector is dropped.
func (d *Detector) look(ctx context.Context, tasks map[*member]*member) {
	for _, t := range tasks {
		for _, all := range []map[int64]Resource{t.holds, t.waits} {
			for _, r := range all {
				if d.sights[r.Board] == nil {
					d.sights[r.Board] = &sight{}
				}
			}
		}
	}
	d.each(ctx, func(ctx context.Context, board Board, s *sight) error {
		if err := s.read(ctx, board); err != nil || s.id != "" || len(tasks) == 0 {
			return err
		}
		_, err := board.Swap(ctx, driver.Swap{Key: boardID, Value: []byte(rand.Text())}) // the next round reads it
		return err
	})
	if len(tasks) > 0 {
		tasks, _ = d.waiting() // a confirmation must be newer than the reading
	}
	wanted := d.step(tasks)
	d.each(ctx, func(ctx context.Context, board Board, s *sight) error {
		return s.write(ctx, board, prefix+d.id+"/", wanted[board])
	})
	for board, s := range d.sights {
		if s.empty && s.id != "" && len(wanted[board]) == 0 {
			delete(d.sights, board)
		}
	}
}

// step runs the state machine of each task, and returns the notes for each board.
func (d *Detector) step(tasks map[*member]*member) map[Board]map[string][]byte {
	wanted := map[Board]map[string][]byte{}
	for board := range d.sights {
		wanted[board] = map[string][]byte{}
	}
	read := d.read()
	for m, c := range tasks {
		t := d.task(c)
		t.last = m.last
		links, v := t.step(read)
		m.last = t.last
		if v != nil && m.abort(v) {
			report.Add(&d.reports, nil, d.hooks.Found, observe.DeadlockFound{Task: c.name, Awaits: c.waits[v.wait].Name, Err: v.err()})
			continue
		}
		n := note{Version: version, Task: c.name, Links: links}
		for _, r := range c.holds {
			n.Holds = append(n.Holds, r.Name)
		}
		slices.Sort(n.Holds)
		for _, w := range links[0].Waits {
			r := c.waits[w.Number]
			n.Awaits = r.Name
			wanted[r.Board][fmt.Sprintf("%s%s.%d", prefix, c.id, w.Number)] = n.encode()
		}
		n.Awaits, n.Links = "", links[:1]
		for _, h := range links[0].Holds {
			if r := c.holds[h.Number]; d.options.Mode == WaitDie {
				n.Held = r.Name
				wanted[r.Board][fmt.Sprintf("%s%s.%d", prefix, c.id, h.Number)] = n.encode()
			}
		}
	}
	return wanted
}

// task returns the input of the state machine: the holds and waits of a task on boards that
// were read.
func (d *Detector) task(c *member) *task {
	t := &task{id: c.id, name: c.name, rank: c.rank, mode: d.options.Mode, holds: map[int64]hold{}, waits: map[int64]wait{}}
	for number, r := range c.holds {
		if s := d.sights[r.Board]; s != nil && s.id != "" {
			t.holds[number] = hold{Number: number, On: s.id + "/" + r.Name, Units: max(r.Wanted, 1)}
		}
	}
	for number, r := range c.waits {
		if s := d.sights[r.Board]; s != nil && s.id != "" {
			t.waits[number] = wait{Number: number, On: s.id + "/" + r.Name, Units: max(r.Wanted, 1), Of: r.Permits}
		}
	}
	return t
}

// each calls visit for all boards concurrently. If a board fails, it is skipped for a while, so
// that the others do not wait for it.
func (d *Detector) each(ctx context.Context, visit func(context.Context, Board, *sight) error) {
	ctx, cancel := context.WithTimeout(ctx, request)
	defer cancel()
	var all sync.WaitGroup
	for board, s := range d.sights {
		if boottime.Now() < s.resting {
			s.notes, s.id = nil, ""
			continue
		}
		all.Go(func() {
			err := visit(ctx, board, s)
			if err == nil {
				s.failures = 0
				return
			}
			s.notes, s.id = nil, ""
			s.failures++
			s.resting = boottime.Now().Add(retries.Delay(s.failures, mathrand.Float64()))
			if d.ctx.Err() == nil {
				report.Add(&d.reports, nil, d.hooks.Failed, observe.DeadlockFailed{Err: err})
			}
		})
	}
	all.Wait()
}

// read returns the notes of all boards. An invalid note is reported once and left out.
func (d *Detector) read() notes {
	h := notes{waiters: map[string][]link{}, holders: map[string][]link{}}
	for _, s := range d.sights {
		for _, kv := range s.notes {
			n, err := parse(kv.Value)
			if err != nil {
				if last := s.seen[kv.Key]; !last.reported {
					last.reported = true
					s.seen[kv.Key] = last
					report.Add(&d.reports, nil, d.hooks.Failed, observe.DeadlockFailed{Err: fmt.Errorf("note %s: %w", kv.Key, err)})
				}
				continue
			}
			if n.Held != "" {
				h.holders[s.id+"/"+n.Held] = append(h.holders[s.id+"/"+n.Held], n.Links...)
				continue
			}
			h.waiters[s.id+"/"+n.Awaits] = append(h.waiters[s.id+"/"+n.Awaits], n.Links...)
		}
	}
	return h
}

func (v *verdict) err() *Error {
	e := &Error{Mode: v.mode}
	name := func(on string) string { _, name, _ := strings.Cut(on, "/"); return name }
	for _, l := range v.cycle {
		for _, w := range l.Waits {
			edge := Edge{Task: l.Name, Awaits: name(w.On)}
			for _, m := range v.cycle {
				if m.holds(w) {
					edge.HeldBy = append(edge.HeldBy, m.Name)
				}
			}
			e.Cycle = append(e.Cycle, edge)
		}
	}
	return e
}
