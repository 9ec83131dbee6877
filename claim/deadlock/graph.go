package deadlock

import (
	"fmt"
	"hash/fnv"
	"slices"
)

// knot returns the tasks that are in a deadlock with the task id, which comes first. It keeps
// only the holds and waits that form the deadlock. If the task is in no deadlock, the result is
// nil. Units whose holder is not in all count as free.
func knot(all []link, id string) []link {
	all = reduce(all)
	down := follow(all, id, link.needs)
	up := follow(all, id, func(l, m link) bool { return m.needs(l) })
	members := slices.DeleteFunc(down, func(l link) bool { return !slices.ContainsFunc(up, l.sameTask) })
	first := slices.IndexFunc(members, func(l link) bool { return l.Task == id })
	if first < 0 {
		return nil
	}
	members = slices.Insert(slices.Delete(slices.Clone(members), first, first+1), 0, members[first])
	trimmed := make([]link, len(members))
	for i, l := range members {
		l.Holds = slices.DeleteFunc(slices.Clone(l.Holds), func(h hold) bool {
			return !slices.ContainsFunc(members, func(m link) bool { return slices.ContainsFunc(m.Waits, h.blocks) })
		})
		l.Waits = slices.DeleteFunc(slices.Clone(l.Waits), func(w wait) bool {
			return !slices.ContainsFunc(members, func(m link) bool { return m.holds(w) })
		})
		trimmed[i] = l
	}
	return trimmed
}

// reduce removes the waits that can be granted once other tasks have ended. It also removes the
// tasks that can end, because all their waits can be granted (R. C. Holt, "Some Deadlock
// Properties of Computer Systems", ACM Computing Surveys 4(3), 1972). The remaining tasks
// cannot end.
func reduce(all []link) []link {
	for {
		var stuck []link
		waits := 0
		for _, l := range all {
			waits += len(l.Waits)
			l.Waits = slices.DeleteFunc(slices.Clone(l.Waits), func(w wait) bool { return !w.stuck(all) })
			waits -= len(l.Waits)
			if len(l.Waits) > 0 {
				stuck = append(stuck, l)
			}
		}
		if all = stuck; waits == 0 {
			return all
		}
	}
}

// stuck reports whether a wait cannot be granted until a holder releases.
func (w wait) stuck(holders []link) bool {
	units := 0
	for _, l := range holders {
		for _, h := range l.Holds {
			if h.blocks(w) {
				units += h.Units
			}
		}
	}
	if w.Of == 0 {
		return units > 0
	}
	return units+w.Units > w.Of
}

func (h hold) blocks(w wait) bool   { return h.On == w.On }
func (l link) sameTask(m link) bool { return l.Task == m.Task }
func (l link) holds(w wait) bool {
	return slices.ContainsFunc(l.Holds, func(h hold) bool { return h.blocks(w) })
}
func (l link) needs(holder link) bool { return slices.ContainsFunc(l.Waits, holder.holds) }

// follow returns the links that are reachable by steps from the link of id, the nearest first.
// It includes that link itself only if a step leads back to it.
func follow(all []link, id string, step func(from, to link) bool) (reached []link) {
	from := slices.DeleteFunc(slices.Clone(all), func(l link) bool { return l.Task != id })
	for len(from) > 0 {
		var next []link
		for _, l := range all {
			if !slices.ContainsFunc(reached, l.sameTask) && slices.ContainsFunc(from, func(m link) bool { return step(m, l) }) {
				next = append(next, l)
			}
		}
		reached, from = append(reached, next...), next
	}
	return reached
}

// digest returns a hash of the holds and waits of a deadlock.
func digest(members []link) uint64 {
	var facts []string
	for _, l := range members {
		for _, h := range l.Holds {
			facts = append(facts, fmt.Sprintf("%q %+v\n", l.Task, h))
		}
		for _, w := range l.Waits {
			facts = append(facts, fmt.Sprintf("%q awaits %+v\n", l.Task, w))
		}
	}
	slices.Sort(facts)
	sum := fnv.New64a()
	for _, fact := range facts {
		_, _ = sum.Write([]byte(fact))
	}
	return max(sum.Sum64(), 1)
}
