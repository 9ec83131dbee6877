package partition

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
)

// load counts the partitions of each member.
func load(assigned map[int]string) map[string]int {
	n := make(map[string]int)
	for _, m := range assigned {
		n[m]++
	}
	return n
}

func moves(from, to map[int]string) (n int) {
	for p, m := range to {
		if from[p] != m {
			n++
		}
	}
	return n
}

func TestPlanOfNobody(t *testing.T) {
	if got := plan(4, nil, map[int]string{1: "gone"}); len(got) != 0 {
		t.Error(got)
	}
}

// TestPlanMovesNoMoreThanItMust lets random members join and leave.
func TestPlanMovesNoMoreThanItMust(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		n := 1 + random.IntN(60)
		members := []string{"m0"}
		now := plan(n, members, nil)
		for step := 1; step < 12; step++ {
			before := slices.Clone(members)
			if joins := random.IntN(2) == 0 || len(members) == 1; joins {
				members = append(members, fmt.Sprint("m", step))
			} else {
				i := random.IntN(len(members))
				members = slices.Delete(members, i, i+1)
			}
			next := plan(n, members, now)
			if len(next) != n {
				t.Fatalf("%d of %d partitions have an owner", len(next), n)
			}
			l := load(next)
			for _, m := range members {
				if l[m] != n/len(members) && l[m] != n/len(members)+1 || l[m] > n/len(members) && n%len(members) == 0 {
					t.Fatalf("%d partitions, %d members: %v", n, len(members), l)
				}
			}
			if got, must := moves(now, next), least(n, before, members, now); got != must {
				t.Fatalf("%d partitions, from %v to %v: %d moved, %d had to", n, before, members, got, must)
			}
			now = next
		}
	}
}

// least returns how many partitions must move: those without an owner, and those above
// a member's share.
func least(n int, before, after []string, now map[int]string) (must int) {
	l := load(now)
	for _, m := range before {
		if !slices.Contains(after, m) {
			must += l[m]
		}
	}
	extra := n % len(after)
	for _, m := range slices.SortedFunc(slices.Values(after), func(a, b string) int { return l[b] - l[a] }) {
		share := n / len(after)
		if extra > 0 {
			share++
			extra--
		}
		must += max(0, l[m]-share)
	}
	return must
}

// TestPlanSettles: the plan stays the same while members carry it out, in any order and
// with partitions temporarily without an owner.
func TestPlanSettles(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for range 300 {
		n := 1 + random.IntN(40)
		members := []string{"a", "b", "c", "d"}[:1+random.IntN(4)]
		now := plan(n, append([]string{"gone"}, members[1:]...), nil)
		goal := plan(n, members, now)
		pending := slices.Collect(maps.Keys(goal))
		random.Shuffle(len(pending), func(i, j int) { pending[i], pending[j] = pending[j], pending[i] })
		for _, p := range pending {
			delete(now, p) // released
			if got := plan(n, members, now); !fits(got, goal, now) {
				t.Fatalf("with %d released, what is owned is planned elsewhere", p)
			}
			now[p] = goal[p] // taken
		}
		if got := plan(n, members, now); !maps.Equal(got, goal) {
			t.Fatalf("carried out, the plan is another one: %v, was %v", got, goal)
		}
	}
}

// fits reports whether a partition that a member already owns by the goal stays there.
func fits(got, goal, now map[int]string) bool {
	for p, m := range now {
		if goal[p] == m && got[p] != m {
			return false
		}
	}
	return true
}

// TestPlanWithYields: the plan does not assign a yielded partition to its last yielder if
// there are others, keeps it with another owner, and settles.
func TestPlanWithYields(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for range 300 {
		n, members := 1+random.IntN(20), []string{"a", "b", "c", "d"}[:1+random.IntN(4)]
		now := plan(n, members, nil)
		yielded := map[int]string{}
		for range 3 {
			i := random.IntN(n)
			yielded[i] = []string{now[i], "gone"}[random.IntN(2)]
		}
		next := planWith(n, members, now, yielded)
		for i, m := range next {
			by := yielded[i]
			if away := by == now[i] && len(members) > 1; away != (m != now[i]) || !slices.Contains(members, m) {
				t.Fatalf("partition %d, yielded by %q, goes from %q to %q", i, by, now[i], m)
			}
		}
		if again := planWith(n, members, next, yielded); len(next) != n || !maps.Equal(again, next) {
			t.Fatalf("%v is followed by %v", next, again)
		}
	}
}
