package deadlock

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/observe"
)

const (
	prefix  = "deadlock/"
	behind  = "deadlock0" // the first key after all with the prefix
	version = 1           // of notes

	page     = 500              // notes read at once
	request  = 2 * time.Second  // bound of the requests to a board in one round
	refresh  = 5 * time.Second  // a note is written again
	departed = 30 * time.Second // its writer has crashed
	closing  = 5 * time.Second  // bound of the last round
)

// retries is how long a board that fails is left in peace.
var retries = backoff.Policy{First: time.Second, Max: 30 * time.Second}

// A note is what a task publishes of one wait. It is only written by the process of the task.
type note struct {
	Version int      `json:"version"`
	Task    string   `json:"task"`
	Name    string   `json:"name"`
	Wait    int64    `json:"wait"`
	Awaits  string   `json:"awaits"`
	Holds   []string `json:"holds"` // for people
	Probes  []probe  `json:"probes"`
}

// sights is what was seen of boards.
type sights map[Board]*sight

type sight struct {
	notes    []driver.KeyValue
	empty    bool            // none of this detector's is left
	seen     map[string]seen // by key
	failures int
	resting  time.Time // until then
}

// seen is since when a note has a revision.
type seen struct {
	revision int64
	since    time.Time
}

// run looks at boards while tasks of this process hold something and wait for something else,
// until the detector is closed.
func (d *Detector) run() {
	timer := time.NewTimer(d.options.Delay)
	defer timer.Stop()
	for {
		select {
		case <-d.ctx.Done():
			ctx, cancel := context.WithTimeout(context.Background(), closing)
			defer cancel()
			for _, s := range d.sights {
				s.resting = time.Time{} // the last round was interrupted
			}
			d.look(ctx, nil)
			return
		case <-d.wake:
		case <-timer.C:
		}
		long, more := d.waiting()
		d.look(d.ctx, long)
		if more || len(d.sights) > 0 {
			timer.Reset(d.options.Interval)
		}
	}
}

// waiting is copies of the tasks that hold something and wait long, with these waits, and
// whether there are others that may come to.
func (d *Detector) waiting() (long map[*member]*task, more bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	long = map[*member]*task{}
	for m := range d.tasks {
		if len(m.holds) == 0 || len(m.waits) == 0 {
			continue
		}
		more = true
		t := m.task
		t.holds, t.waits = maps.Clone(m.holds), map[int64]Resource{}
		for wait, r := range m.waits {
			if time.Since(m.begun[wait]) >= d.options.Delay {
				t.waits[wait] = r
			}
		}
		if len(t.waits) > 0 {
			long[m] = &t
		}
	}
	return long, more
}

// look reads the boards of tasks, ends waits, and publishes what others must know. A board on
// which nothing is left of this detector is forgotten.
func (d *Detector) look(ctx context.Context, tasks map[*member]*task) {
	wanted := map[Board]map[string][]byte{}
	for _, t := range tasks {
		for _, all := range []map[int64]Resource{t.holds, t.waits} {
			for _, r := range all {
				if d.sights[r.Board] == nil {
					d.sights[r.Board] = &sight{}
				}
			}
		}
	}
	for board := range d.sights {
		wanted[board] = map[string][]byte{}
	}
	d.each(ctx, func(ctx context.Context, board Board, s *sight) error { return s.read(ctx, board) })
	heard := d.heard()
	for m, t := range tasks {
		published, v := t.step(heard)
		if v != nil && m.abort(v) {
			d.found(t, v)
			continue
		}
		for wait, probes := range published {
			n := note{Version: version, Task: t.id, Name: t.name, Wait: wait, Awaits: t.waits[wait].Name, Probes: probes}
			for _, r := range t.holds {
				n.Holds = append(n.Holds, r.Name)
			}
			slices.Sort(n.Holds)
			data, err := json.Marshal(n)
			if err != nil {
				panic(err) // strings and numbers
			}
			wanted[t.waits[wait].Board][fmt.Sprintf("%s%s.%d", prefix, t.id, wait)] = data
		}
	}
	d.each(ctx, func(ctx context.Context, board Board, s *sight) error {
		return s.write(ctx, board, prefix+d.id+"/", wanted[board])
	})
	for board, s := range d.sights {
		if s.empty && len(wanted[board]) == 0 {
			delete(d.sights, board)
		}
	}
}

// each calls visit for all boards at the same time. One that fails is left in peace for a
// while: the others are not to wait for it.
func (d *Detector) each(ctx context.Context, visit func(context.Context, Board, *sight) error) {
	ctx, cancel := context.WithTimeout(ctx, request)
	defer cancel()
	var all sync.WaitGroup
	for board, s := range d.sights {
		if time.Now().Before(s.resting) {
			s.notes = nil
			continue
		}
		all.Go(func() {
			err := visit(ctx, board, s)
			if err == nil {
				s.failures = 0
				return
			}
			s.notes = nil
			s.failures++
			s.resting = time.Now().Add(retries.Delay(s.failures, rand.Float64()))
			if hook := d.hooks.Failed; hook != nil && d.ctx.Err() == nil {
				hook(observe.DeadlockFailed{Err: err})
			}
		})
	}
	all.Wait()
}

// heard is the probes on all boards, by what their last wait is for. A note that cannot be
// understood is reported and left out.
func (d *Detector) heard() map[Resource][]probe {
	heard := map[Resource][]probe{}
	for board, s := range d.sights {
		for _, kv := range s.notes {
			n, err := parse(kv.Value)
			if err != nil {
				if hook := d.hooks.Failed; hook != nil {
					hook(observe.DeadlockFailed{Err: fmt.Errorf("note %s: %w", kv.Key, err)})
				}
				continue
			}
			r := Resource{Board: board, Name: n.Awaits}
			heard[r] = append(heard[r], n.Probes...)
		}
	}
	return heard
}

// parse checks that each probe has reached the wait of its note.
func parse(data []byte) (n note, err error) {
	if err = json.Unmarshal(data, &n); err != nil {
		return n, err
	}
	if n.Version != version {
		return n, fmt.Errorf("version %d is not known, this is version %d", n.Version, version)
	}
	for _, p := range n.Probes {
		if len(p.Path) == 0 || len(p.Path) > maxPath || p.Confirmed < 0 || p.Confirmed > len(p.Path) {
			return n, errors.New("a probe without a path")
		}
		if e := p.end(); e.Task != n.Task || e.Wait != n.Wait || e.Awaits != n.Awaits {
			return n, errors.New("a probe of another wait")
		}
	}
	return n, nil
}

func (d *Detector) found(t *task, v *verdict) {
	if hook := d.hooks.Found; hook != nil {
		hook(observe.DeadlockFound{Task: t.name, Awaits: t.waits[v.wait].Name, Err: v.err()})
	}
}

func (v *verdict) err() *Error {
	e := &Error{}
	for _, l := range v.cycle {
		e.Cycle = append(e.Cycle, Edge{Task: l.Name, Awaits: l.Awaits})
	}
	return e
}

// read reads all notes of a board, and notes how long each has been the same.
func (s *sight) read(ctx context.Context, board Board) error {
	s.notes, s.empty = nil, false
	for from := prefix; ; {
		some, err := board.Scan(ctx, from, behind, page)
		if err != nil {
			return err
		}
		s.notes = append(s.notes, some...)
		if len(some) < page {
			break
		}
		from = some[page-1].Key + "\x01"
	}
	now := time.Now()
	before := s.seen
	s.seen = map[string]seen{}
	for _, kv := range s.notes {
		same := before[kv.Key]
		if same.revision != kv.Revision {
			same = seen{kv.Revision, now}
		}
		s.seen[kv.Key] = same
	}
	return nil
}

// write makes the notes with a prefix those that are wanted, and removes those of processes
// that have crashed. What another one changed meanwhile is seen in the next round.
func (s *sight) write(ctx context.Context, board Board, own string, wanted map[string][]byte) error {
	var swaps []driver.Swap
	there := map[string]bool{}
	s.empty = true
	for _, kv := range s.notes {
		there[kv.Key] = true
		data, age := wanted[kv.Key], time.Since(s.seen[kv.Key].since)
		mine := strings.HasPrefix(kv.Key, own)
		s.empty = s.empty && !mine
		switch {
		case mine && data == nil, !mine && age > departed:
			swaps = append(swaps, driver.Swap{Key: kv.Key, Revision: kv.Revision, Delete: true})
		case mine && (age > refresh || !bytes.Equal(data, kv.Value)):
			swaps = append(swaps, driver.Swap{Key: kv.Key, Revision: kv.Revision, Value: data})
		}
	}
	for key, data := range wanted {
		if !there[key] {
			swaps = append(swaps, driver.Swap{Key: key, Value: data})
		}
	}
	for _, swap := range swaps {
		if _, err := board.Swap(ctx, swap); err != nil {
			return err
		}
	}
	return nil
}
