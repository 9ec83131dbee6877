package deadlock

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
)

// Bounds of what a task publishes.
const (
	maxLinks    = 64 // other tasks
	maxHops     = 32 // waits from one of them to the task that publishes it
	maxConfirms = 8  // suspicions that it confirms
)

// rank orders tasks by how little is lost with them. The lowest one of a deadlock gives up.
type rank struct {
	Priority int   `json:"priority"`
	Began    int64 `json:"began"` // microseconds; of two tasks, the younger one ranks lower
}

// A hold is units of a resource that its task holds.
type hold struct {
	Number int64  `json:"number"` // no number of a task is used twice, except that a wait becomes the hold of its number
	On     string `json:"on"`
	Units  int    `json:"units"`
}

// A wait is units of a resource that its task wants.
type wait struct {
	Number int64  `json:"number"`
	On     string `json:"on"`
	Units  int    `json:"units"`
	Of     int    `json:"of,omitempty"` // the units that there are; 0: all holders have to release theirs
}

// A link is what a task holds and awaits, and what it knows of deadlocks.
type link struct {
	Task     string    `json:"task"` // unique for all time
	Name     string    `json:"name"` // for people
	Rank     rank      `json:"rank"`
	Version  int64     `json:"version"`         // rises with each change
	Hops     int       `json:"hops,omitempty"`  // waits between this task and the one that publishes it
	Holds    []hold    `json:"holds,omitempty"` // that others await
	Waits    []wait    `json:"waits"`
	Suspects uint64    `json:"suspects,omitempty"` // the digest of the deadlock that it may have to end
	Confirms []confirm `json:"confirms,omitempty"`
}

// A confirm says that a link was written after its task had read of a suspicion.
type confirm struct {
	Task     string `json:"task"` // that suspects
	Suspects uint64 `json:"suspects"`
}

// compare is negative if l gives up rather than other.
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
	last     link // that it published
}

// heard is what was read, by resource: the links that those publish who await it, and of those
// who hold it, in mode WaitDie.
type heard struct{ waiters, holders map[string][]link }

// A verdict says why a wait has to end.
type verdict struct {
	mode  Mode
	wait  int64
	cycle []link // the first one is of the task that gives up
}

// step computes what a task publishes beside all that it awaits, its own link first, and whether
// one of its waits has to end. It is pure, and remembers only the version of its own link. The
// holds and waits of the task are not older than what was read.
func (t *task) step(h heard) (published []link, v *verdict) {
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

// collect returns the links of tasks that await this one, also by way of others: of each the
// latest one, by the shortest way, the nearest first. Tasks that hold nothing that is awaited are in
// no deadlock.
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

// confirm confirms the suspicions of tasks below this one, those of the lowest first.
func (l link) confirm(others []link) (all []confirm) {
	for _, m := range slices.SortedFunc(slices.Values(others), link.compare) {
		if m.Suspects != 0 && m.compare(l) < 0 && len(all) < maxConfirms {
			all = append(all, confirm{m.Task, m.Suspects})
		}
	}
	return all
}

// judge is the verdict on a suspected deadlock, if so many of its tasks have confirmed it that
// they are in a deadlock by themselves. They are all above this one.
func (l link) judge(suspected []link) *verdict {
	confirmed := slices.DeleteFunc(slices.Clone(suspected), func(m link) bool {
		return m.Task != l.Task && !slices.Contains(m.Confirms, confirm{l.Task, l.Suspects})
	})
	if cycle := knot(confirmed, l.Task); cycle != nil {
		return &verdict{mode: Detect, wait: cycle[0].Waits[0].Number, cycle: cycle}
	}
	return nil
}

// prevent applies the rule of a mode that prevents deadlocks to the waits of this task.
func (l link) prevent(mode Mode, h heard) *verdict {
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
