package partition

import (
	"cmp"
	"slices"
)

// plan returns which member should own each of n partitions, given the current owners. All
// members compute the same plan from the same picture.
//
// Loads differ by at most one, and no more partitions move than that requires. A new member
// takes its share from the others, and nothing moves between those. The partitions of a member
// that leaves go to the others, and nothing else moves. Ties are decided by rendezvous hashing
// of member and partition.
func plan(n int, members []string, current map[int]string) map[int]string {
	if len(members) == 0 {
		return nil
	}
	kept := held(n, members, current)
	return assign(n, members, kept, quotas(n, members, kept), make(map[int]string, n))
}

// assign assigns partitions to members: first those that a member keeps, up to its room, and
// then the others. It does not change entries that are already assigned.
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
			m := preferredMember(p, members, room)
			assigned[p] = m
			room[m]--
		}
	}
	return assigned
}

// planWith returns the plan with yielded partitions, by the member that yielded each last. If
// another member owns a yielded partition, it stays there. Otherwise it goes to the next
// member after the one that yielded it, in the partition's order of members, so that all have
// their turn. It counts in no member's share, so it moves no other partition.
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

// following returns the member after another in the order of a partition.
func following(p int, by string, members []string) string {
	order := slices.Clone(members)
	slices.SortFunc(order, func(a, b string) int {
		return cmp.Or(cmp.Compare(score(hash(a), uint64(p)), score(hash(b), uint64(p))), cmp.Compare(a, b))
	})
	return order[(slices.Index(order, by)+1)%len(order)]
}

// held lists the current partitions of each member.
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

// quotas returns how many partitions each member should own. If n does not divide evenly, the
// members that own most have one more, so that fewer move.
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

// preferredMember returns the member with room that has the highest score for p.
func preferredMember(p int, members []string, room map[string]int) string {
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

// prefer compares the scores of two partitions for m.
func prefer(m string, a, b int) int {
	return cmp.Or(cmp.Compare(score(hash(m), uint64(a)), score(hash(m), uint64(b))), cmp.Compare(a, b))
}
