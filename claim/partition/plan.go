package partition

import (
	"cmp"
	"slices"
)

// plan says which member should own each of n partitions, given who owns them
// now. Everybody computes the same from the same picture.
//
// Loads differ by at most one. What a member has and may keep it keeps, so that
// no more moves than the loads require: a member that joins takes its share from
// the others and nothing moves between those; what a member leaves behind goes
// to the others and nothing else moves. Where there is a choice, rendezvous
// hashing of member and partition makes it.
func plan(n int, members []string, current map[int]string) map[int]string {
	if len(members) == 0 {
		return nil
	}
	kept := held(n, members, current)
	return assign(n, members, kept, quotas(n, members, kept), make(map[int]string, n))
}

// assign gives partitions to members: those that a member has kept, up to its room, and then
// the others. What is assigned already stays so.
func assign(n int, members []string, kept map[string][]int, room map[string]int, assigned map[int]string) map[int]string {
	for _, m := range members {
		mine := kept[m]
		slices.SortFunc(mine, func(a, b int) int { return prefer(m, b, a) })
		for _, p := range mine[:min(len(mine), room[m])] {
			assigned[p] = m
			room[m]--
		}
	}
	for p := range n {
		if assigned[p] == "" {
			m := favourite(p, members, room)
			assigned[p] = m
			room[m]--
		}
	}
	return assigned
}

// planWith is plan with partitions that a member has yielded, by who did so last. Such a
// one stays with its owner if that is another member. Otherwise it goes to the member
// that follows the one that yielded it, in an order of its own, so that all members have
// their turn. It is nobody's share: where it goes moves no other.
func planWith(n int, members []string, current, yielded map[int]string) map[int]string {
	assigned := make(map[int]string, n)
	for p, by := range yielded {
		switch {
		case p >= n || len(members) < 2 || !slices.Contains(members, by):
		case current[p] != by && slices.Contains(members, current[p]):
			assigned[p] = current[p]
		default:
			assigned[p] = following(p, by, members)
		}
	}
	if len(assigned) == 0 {
		return plan(n, members, current)
	}
	kept, room := held(n, members, current), make(map[string]int, len(members))
	for _, m := range members {
		kept[m] = slices.DeleteFunc(kept[m], func(p int) bool { return assigned[p] != "" })
		room[m] = (n + len(members) - 1) / len(members)
	}
	return assign(n, members, kept, room, assigned)
}

// following is the member that comes after another in the order of a partition.
func following(p int, by string, members []string) string {
	order := slices.Clone(members)
	slices.SortFunc(order, func(a, b string) int {
		return cmp.Or(cmp.Compare(score(hash(a), uint64(p)), score(hash(b), uint64(p))), cmp.Compare(a, b))
	})
	return order[(slices.Index(order, by)+1)%len(order)]
}

// held lists what each member has now.
func held(n int, members []string, current map[int]string) map[string][]int {
	kept := make(map[string][]int, len(members))
	for _, m := range members {
		kept[m] = nil
	}
	for p := range n {
		if mine, ok := kept[current[p]]; ok {
			kept[current[p]] = append(mine, p)
		}
	}
	return kept
}

// quotas is how many each member should own. Where n does not divide evenly the
// members that own most have one more, so that less moves.
func quotas(n int, members []string, kept map[string][]int) map[string]int {
	order := slices.Clone(members)
	slices.SortFunc(order, func(a, b string) int {
		return cmp.Or(cmp.Compare(len(kept[b]), len(kept[a])), cmp.Compare(a, b))
	})
	room := make(map[string]int, len(members))
	for i, m := range order {
		room[m] = n / len(members)
		if i < n%len(members) {
			room[m]++
		}
	}
	return room
}

// favourite is the member with room that scores highest for p.
func favourite(p int, members []string, room map[string]int) string {
	best, top := "", uint64(0)
	for _, m := range members {
		if room[m] == 0 {
			continue
		}
		if s := score(hash(m), uint64(p)); best == "" || s > top || s == top && m < best {
			best, top = m, s
		}
	}
	return best
}

// prefer compares what two partitions score for m.
func prefer(m string, a, b int) int {
	return cmp.Or(cmp.Compare(score(hash(m), uint64(a)), score(hash(m), uint64(b))), cmp.Compare(a, b))
}
