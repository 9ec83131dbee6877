package deadlock

import (
	"cmp"
	"slices"
)

// Bounds of what a task publishes.
const (
	maxPath   = 32 // waits on one path
	maxRoutes = 4  // paths of one initiator
	maxProbes = 64 // paths in one note
)

// A link is one wait on a path: that of a task which holds what the link before it awaits.
type link struct {
	Task   string `json:"task"` // unique for all time
	Name   string `json:"name"` // of the task, for people
	Rank   rank   `json:"rank"`
	Hold   int64  `json:"hold"` // which hold of the task on what the former link awaits; 0 in the first link
	Wait   int64  `json:"wait"` // which wait of the task
	Awaits string `json:"awaits"`
}

// rank orders tasks by how little is lost with them. The lowest one of a cycle gives up.
type rank struct {
	Priority int   `json:"priority"`
	Began    int64 `json:"began"` // microseconds; of two tasks, the younger one ranks lower
}

// below reports whether the task of l gives up rather than another one.
func (l link) below(other rank, task string) bool {
	return cmp.Or(cmp.Compare(l.Rank.Priority, other.Priority), cmp.Compare(other.Began, l.Rank.Began), cmp.Compare(l.Task, task)) < 0
}

// A probe is a path from its initiator along waits. When it has come back to the initiator it
// goes round once more, and each task of it confirms that it still waits.
type probe struct {
	Path      []link `json:"path"`
	Hold      int64  `json:"hold,omitempty"`      // of the initiator, on what the last link awaits
	Confirmed int    `json:"confirmed,omitempty"` // how many links are; 0: it has not come back
}

// end is the link whose wait the probe has reached.
func (p probe) end() link {
	if p.Confirmed > 0 {
		return p.Path[p.Confirmed-1]
	}
	return p.Path[len(p.Path)-1]
}

// task is what one task holds and awaits at one instant.
type task struct {
	id, name string
	rank     rank
	holds    map[int64]Resource // by number; no number of a task is used twice, except
	waits    map[int64]Resource // that a wait becomes the hold of its number
}

// A verdict is a confirmed cycle, and the wait of the task that gives up for it.
type verdict struct {
	wait  int64
	cycle []link
}

// step is the Chandy–Misra–Haas rule of the AND model for one task: from the probes of those
// that wait for what it holds, it computes those that it publishes for each of its waits, and
// whether one of these waits is given up. It is pure, and remembers nothing: a probe is
// published for as long as its way here lasts.
func (t *task) step(heard map[Resource][]probe) (published map[int64][]probe, v *verdict) {
	published = map[int64][]probe{}
	for wait, awaited := range t.waits {
		published[wait] = []probe{{Path: []link{t.link(0, wait, awaited)}}}
	}
	for hold, held := range t.holds {
		for _, p := range heard[held] {
			for wait, awaited := range t.waits {
				next, over := t.pass(p, hold, wait, awaited)
				switch {
				case over:
					return published, &verdict{wait: wait, cycle: p.Path}
				case next != nil:
					published[wait] = append(published[wait], *next)
				}
			}
		}
	}
	for wait := range published {
		published[wait] = choose(published[wait])
	}
	return published, nil
}

func (t *task) link(hold, wait int64, awaited Resource) link {
	return link{Task: t.id, Name: t.name, Rank: t.rank, Hold: hold, Wait: wait, Awaits: awaited.Name}
}

// pass is what one wait of the task makes of a probe: nil if it ends here. over says that the
// probe has confirmed the cycle of this wait.
func (t *task) pass(p probe, hold, wait int64, awaited Resource) (next *probe, over bool) {
	first := p.Path[0]
	mine := first == t.link(0, wait, awaited)
	switch {
	case p.Confirmed == len(p.Path):
		return nil, mine && p.Hold == hold
	case p.Confirmed > 0:
		if p.Path[p.Confirmed] != t.link(hold, wait, awaited) {
			return nil, false
		}
		p.Confirmed++
		return &p, false
	case mine:
		return &probe{Path: p.Path, Hold: hold, Confirmed: 1}, false
	case len(p.Path) == maxPath, !first.below(t.rank, t.id), slices.ContainsFunc(p.Path, func(l link) bool { return l.Task == t.id }):
		return nil, false
	}
	return &probe{Path: append(slices.Clone(p.Path), t.link(hold, wait, awaited))}, false
}

// choose bounds what is published, in the same way each time: confirmations first, then by
// rank of the initiator and length, a few of each initiator.
func choose(all []probe) []probe {
	slices.SortFunc(all, func(a, b probe) int {
		x, y := a.Path[0], b.Path[0]
		return cmp.Or(-cmp.Compare(a.Confirmed, b.Confirmed), cmp.Compare(x.Rank.Priority, y.Rank.Priority), cmp.Compare(y.Rank.Began, x.Rank.Began),
			cmp.Compare(x.Task, y.Task), cmp.Compare(len(a.Path), len(b.Path)), slices.CompareFunc(a.Path, b.Path, func(x, y link) int {
				return cmp.Or(cmp.Compare(x.Task, y.Task), cmp.Compare(x.Wait, y.Wait), cmp.Compare(x.Hold, y.Hold))
			}))
	})
	routes := map[string]int{}
	kept := all[:0]
	for _, p := range all {
		if routes[p.Path[0].Task]++; routes[p.Path[0].Task] <= maxRoutes && len(kept) < maxProbes {
			kept = append(kept, p)
		}
	}
	return kept
}
