package deadlock

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
)

// Limits of what a task publishes.
const (
	maxLinks    = 64 // other tasks
	maxHops     = 32 // waits from one of them to the task that publishes it
	maxConfirms = 8  // suspicions that the task confirms
)

// rank orders tasks by how little is lost if their wait ends. In a deadlock the lowest rank
// loses.
type rank struct {
	Priority int   `json:"priority"`
	Began    int64 `json:"began"` // microseconds; of two tasks, the younger one ranks lower
}

// A hold is units of a resource that a task holds.
type hold struct {
	Number int64  `json:"number"` // unique in a task; a granted wait becomes the hold with the same number
	On     string `json:"on"`
	Units  int    `json:"units"`
}

// A wait is units of a resource that a task wants.
type wait struct {
	Number int64  `json:"number"`
	On     string `json:"on"`
	Units  int    `json:"units"`
	Of     int    `json:"of,omitempty"` // the total number of units; 0 means that all holders must release theirs
}

// A link is what a task holds and awaits, and what the task knows of deadlocks.
type link struct {
	Task     string    `json:"task"` // never used again
	Name     string    `json:"name"` // for people
	Rank     rank      `json:"rank"`
	Version  int64     `json:"version"`         // increases with each change
	Hops     int       `json:"hops,omitempty"`  // waits between this task and the one that publishes it
	Holds    []hold    `json:"holds,omitempty"` // only those that others await
	Waits    []wait    `json:"waits"`
	Suspects uint64    `json:"suspects,omitempty"` // the digest of the deadlock that the task may have to end
	Confirms []confirm `json:"confirms,omitempty"`
}

// A confirm states that a link was written after its task had read of a suspicion.
type confirm struct {
	Task     string `json:"task"` // the task that suspects
	Suspects uint64 `json:"suspects"`
}

// compare returns a negative number if, of l and other, the wait of l must end.
func (l link) compare(other link) int {
	return cmp.Or(cmp.Compare(l.Rank.Priority, other.Rank.Priority), cmp.Compare(other.Rank.Began, l.Rank.Began), cmp.Compare(l.Task, other.Task))
}

// task is what one task holds and awaits at one instant.
type task struct {
	id, name string
	rank     rank
	mode     Mode
	holds    map[int64]hold
	waits    map[int64]wait
	last     link // last published
}

// notes are what was read, by resource: the links that waiters publish, and in mode WaitDie
// those of holders.
type notes struct{ waiters, holders map[string][]link }

// A verdict is the reason why a wait must end.
type verdict struct {
	mode  Mode
	wait  int64
	cycle []link // the first link belongs to the task whose wait ends
}

// step computes what a task publishes for each resource that it awaits, its own link first, and
// whether one of its waits must end. It is pure, and stores only the version of its own link.
// The holds and waits of the task are not older than the notes in h.
func (t *task) step(h notes) (published []link, v *verdict) {
	own := link{Task: t.id, Name: t.name, Rank: t.rank, Version: t.last.Version}
	for _, number := range slices.Sorted(maps.Keys(t.waits)) {
		own.Waits = append(own.Waits, t.waits[number])
	}
	for _, number := range slices.Sorted(maps.Keys(t.holds)) {
		if held := t.holds[number]; len(h.waiters[held.On]) > 0 {
			own.Holds = append(own.Holds, held)
		}
	}
	others := own.collect(h.waiters)
	own.Confirms = own.confirm(others)
	if suspected := knot(append(others, own), own.Task); suspected != nil {
		own.Suspects = digest(suspected)
		v = own.judge(suspected)
	}
	if prevented := own.prevent(t.mode, h); prevented != nil {
		v = prevented
	}
	if !reflect.DeepEqual(own, t.last) {
		own.Version++
	}
	t.last = own
	return append([]link{own}, others...), v
}

// collect returns the links of tasks that await this one, directly or through others, the
// nearest first. For each task it returns the latest link, by the shortest path. Tasks whose
// holds no task awaits are in no deadlock.
func (l link) collect(waiters map[string][]link) (others []link) {
	known := map[string]link{}
	for _, held := range l.Holds {
		for _, m := range waiters[held.On] {
			if m.Task == l.Task || len(m.Holds) == 0 || m.Hops >= maxHops {
				continue
			}
			m.Hops++
			if old, ok := known[m.Task]; !ok || cmp.Or(cmp.Compare(old.Version, m.Version), cmp.Compare(m.Hops, old.Hops)) < 0 {
				known[m.Task] = m
			}
		}
	}
	others = slices.SortedFunc(maps.Values(known), func(a, b link) int { return cmp.Or(cmp.Compare(a.Hops, b.Hops), a.compare(b)) })
	return others[:min(len(others), maxLinks)]
}

// confirm confirms the suspicions of tasks below this one, the lowest first.
func (l link) confirm(others []link) (all []confirm) {
	for _, m := range slices.SortedFunc(slices.Values(others), link.compare) {
		if m.Suspects != 0 && m.compare(l) < 0 && len(all) < maxConfirms {
			all = append(all, confirm{m.Task, m.Suspects})
		}
	}
	return all
}

// judge returns a verdict if enough tasks of a suspected deadlock have confirmed it to form a
// deadlock by themselves. All of them rank above this one.
func (l link) judge(suspected []link) *verdict {
	confirmed := slices.DeleteFunc(slices.Clone(suspected), func(m link) bool {
		return m.Task != l.Task && !slices.Contains(m.Confirms, confirm{l.Task, l.Suspects})
	})
	if cycle := knot(confirmed, l.Task); cycle != nil {
		return &verdict{mode: Detect, wait: cycle[0].Waits[0].Number, cycle: cycle}
	}
	return nil
}

// prevent applies the rule of a preventing mode to the waits of this task.
func (l link) prevent(mode Mode, h notes) *verdict {
	if len(l.Waits) == 0 { // no board of its waits was read
		return nil
	}
	switch mode {
	case WoundWait:
		for _, held := range l.Holds {
			for _, m := range h.waiters[held.On] {
				if m.Hops == 0 && l.compare(m) < 0 {
					l.Holds, l.Waits = []hold{held}, l.Waits[:1]
					m.Holds, m.Waits = nil, slices.DeleteFunc(slices.Clone(m.Waits), func(w wait) bool { return w.On != held.On })
					return &verdict{mode: mode, wait: l.Waits[0].Number, cycle: []link{l, m}}
				}
			}
		}
	case WaitDie:
		for _, w := range l.Waits {
			for _, m := range h.holders[w.On] {
				if l.compare(m) < 0 {
					l.Holds, l.Waits = nil, []wait{w}
					m.Waits = nil
					return &verdict{mode: mode, wait: w.Number, cycle: []link{l, m}}
				}
			}
		}
	}
	return nil
}
