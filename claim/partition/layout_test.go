package partition

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// TestHashedKeysStay: these are where keys are in running groups. If this fails,
// an upgrade would give keys two owners while old and new members coexist.
func TestHashedKeysStay(t *testing.T) {
	l := Layout{Partitions: 64}
	for key, want := range map[string]int{"": 61, "order/1": 34, "order/2": 35, "account/alice": 63, "\xff\x00": 1} {
		if got := l.Of(key); got != want {
			t.Errorf("%q is in %d, was in %d", key, got, want)
		}
	}
}

func TestRangesAreHalfOpen(t *testing.T) {
	l := Layout{Splits: []string{"g", "p"}}
	for key, want := range map[string]int{"": 0, "a": 0, "fzz": 0, "g": 1, "o": 1, "p": 2, "z": 2} {
		if got := l.Of(key); got != want {
			t.Errorf("%q is in %d, want %d", key, got, want)
		}
	}
	if l.Count() != 3 {
		t.Errorf("%d ranges", l.Count())
	}
}

// TestGrowingMovesNoMore: of n keys the share (b-a)/b moves, and only to the new
// partitions.
func TestGrowingMovesNoMore(t *testing.T) {
	const keys, a, b = 20000, 16, 24
	moved, load := 0, make([]int, b)
	for i := range keys {
		key := fmt.Sprint("key/", i)
		from, to := Layout{Partitions: a}.Of(key), Layout{Partitions: b}.Of(key)
		load[to]++
		if from != to {
			moved++
			if to < a {
				t.Fatalf("%s moved from %d to %d, which was there before", key, from, to)
			}
		}
	}
	if want := float64(keys) * (b - a) / b; math.Abs(float64(moved)-want) > want/10 {
		t.Errorf("%d keys moved, about %.0f have to", moved, want)
	}
	if low, high := slices.Min(load), slices.Max(load); low < keys/b*8/10 || high > keys/b*12/10 {
		t.Errorf("partitions have %d to %d keys, %d on average", low, high, keys/b)
	}
}

func TestLayoutsAreChecked(t *testing.T) {
	for _, l := range []Layout{
		{}, {Partitions: -1}, {Partitions: MaxPartitions + 1}, {Partitions: 2, Splits: []string{"a"}},
		{Splits: []string{"b", "a"}}, {Splits: []string{"a", "a"}}, {Splits: []string{"a", "\x80"}},
	} {
		if err := l.Validate(); interlock.Kind(err) != interlock.Bug || err == nil {
			t.Errorf("%+v: %v", l, err)
		}
	}
	for _, l := range []Layout{{Partitions: 1}, {Splits: []string{""}}, {Splits: []string{"a", "b"}}} {
		if err := l.Validate(); err != nil {
			t.Error(err)
		}
		r := record{Generation: 7, Layout: l, Next: &l}
		got, err := decode(r.encode())
		if err != nil || got.Generation != 7 || !got.Layout.Equal(l) || got.Next == nil || !got.Next.Equal(l) {
			t.Errorf("%v came back as %+v, %v", l, got, err)
		}
	}
	for _, bad := range []string{"", "{}", `{"generation":1,"layout":{"partitions":2},"next":{}}`} {
		if _, err := decode([]byte(bad)); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}

func TestNamesAreRead(t *testing.T) {
	n, err := newNames("orders/eu")
	testbed.OK(t, err)
	m := Member{Identity: "host/1 {a}", Address: "10.0.0.1:80/%"}
	if got, ok := n.isMember(n.member(m)); !ok || got != m {
		t.Errorf("read %+v", got)
	}
	for _, name := range []string{"{orders/eu}/member/%61/b", "{orders/eu}/member/a/b c", "{orders/eu}/member/a"} {
		if got, ok := n.isMember(name); ok {
			t.Errorf("%q was read as member %+v", name, got)
		}
	}
	if g, i, ok := n.isPartition(n.partition(3, 12)); !ok || g != 3 || i != 12 {
		t.Errorf("read %d/%d, %v", g, i, ok)
	}
	for _, name := range []string{n.layout(), n.partition(1, 2) + "/x", n.partition(1, 2) + "3x", "{orders/eu}/partition/1", "{orders/eu}/partition/01/2"} {
		if _, _, ok := n.isPartition(name); ok {
			t.Errorf("%q was read as a partition", name)
		}
	}
	for _, group := range []string{"", "a{b", "a}b"} {
		if _, err := newNames(group); interlock.Kind(err) != interlock.Bug {
			t.Errorf("%q: %v", group, err)
		}
	}
}

func FuzzLayoutRecord(f *testing.F) {
	for _, s := range []string{`{}`, `{"generation":1,"layout":{}}`, `{"generation":-1}`, `{"generation":2,"layout":{},"next":{}}`, `[`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := decode(data)
		if err != nil {
			return
		}
		if again, err := decode(r.encode()); err != nil || string(again.encode()) != string(r.encode()) {
			t.Fatalf("%q is %+v, and written again %+v, %v", data, r, again, err)
		}
	})
}

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
