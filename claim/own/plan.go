package own

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
	room := quotas(n, members, kept)
	assigned := make(map[int]string, n)
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
