package crash

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/interlock-dev/interlock/internal/testbed"
)

// A Scene is a world for one run of a role.
type Scene struct {
	Args []string         // of the role
	Want func(testing.TB) // judges what is left once the role has ended
}

// Once kills a role at each of its points, lets it run again to its end, and asks
// the scene whether all is as it should be. The scene of each point is its own, and
// they are parallel subtests: Once returns before they have run.
// It returns how many points there are, and fails the test if there are none.
func Once(t *testing.T, role string, scene func(testing.TB) Scene) int {
	t.Helper()
	return Share(t, role, 0, 1, scene)
}

// Share is Once for one of several places, such as databases, that divide the points
// among them: it kills at every of-th point, beginning with the part-th, from 0. All
// points are killed at if [Full] says so.
func Share(t *testing.T, role string, part, of int, scene func(testing.TB) Scene) int {
	t.Helper()
	if Full() {
		part, of = 0, 1
	}
	all := whole(t, role, scene)
	for point := 1 + part; point <= all; point += of {
		t.Run(fmt.Sprintf("killed at %d of %d", point, all), func(t *testing.T) {
			t.Parallel()
			play(t, role, scene(t), point)
		})
	}
	return all
}

// Part is the part of a [Share] by PostgreSQL and MariaDB for a subtest of databases.Each.
func Part(t *testing.T) int {
	if strings.Contains(t.Name(), "mariadb") {
		return 1
	}
	return 0
}

// Seconds are the points at which the second run of a process in memory is killed, after
// the first one was killed at a point: all if [Full] says so, else every third one, or
// every twelfth under the race detector, which has little to find there and takes ten
// times as long. With as many points of the first run in a row they are all.
func Seconds(first int) (from, step int) {
	if Full() {
		return 1, 1
	}
	step = 3
	if testbed.Brief() {
		step = 12
	}
	return 1 + first%step, step
}

// Twice is Once that kills the second run too, at each of its points.
func Twice(t *testing.T, role string, scene func(testing.TB) Scene) {
	t.Helper()
	all := whole(t, role, scene)
	for first := 1; first <= all; first++ {
		t.Run(fmt.Sprintf("killed at %d of %d", first, all), func(t *testing.T) {
			t.Parallel()
			// How long the second run is depends on where the first one ended.
			for second, killed := 1, true; killed; second++ {
				s := scene(t)
				if _, dead := Run(t, role, first, s.Args...); !dead {
					shorter(t, s, first)
					return
				}
				_, killed = Run(t, role, second, s.Args...)
				if killed {
					finish(t, role, s)
				} else {
					s.Want(t)
				}
			}
		})
	}
}

// Pairs is Twice if [Full] says so; else it takes as many pairs as sample says, spread
// over the points of the first run, and a point of the second one that chance chooses,
// each time the same.
func Pairs(t *testing.T, role string, sample int, scene func(testing.TB) Scene) {
	t.Helper()
	if Full() {
		Twice(t, role, scene)
		return
	}
	all := whole(t, role, scene)
	dice := diceOf(t)
	for _, first := range spread(dice, sample, all) {
		second := dice.IntN(1 << 20)
		t.Run(fmt.Sprintf("killed at %d of %d, and again", first, all), func(t *testing.T) {
			t.Parallel()
			pair(t, role, first, second, all-first+1, scene)
		})
	}
}

// diceOf fall the same in each run of a test, and otherwise in each test.
func diceOf(t *testing.T) *rand.Rand {
	name := fnv.New64a()
	_, _ = name.Write([]byte(t.Name())) // it never fails
	return rand.New(rand.NewPCG(name.Sum64(), 8))
}

// Full reports whether every pair of points is asked for, by INTERLOCK_CRASHES=full: it
// takes minutes.
func Full() bool { return os.Getenv("INTERLOCK_CRASHES") == "full" }

// spread are n of the points, or all of them if there are fewer, one in each n-th part.
func spread(dice *rand.Rand, n, all int) (points []int) {
	n = min(n, all)
	for i := range n {
		from, to := i*all/n, (i+1)*all/n
		points = append(points, 1+from+dice.IntN(to-from))
	}
	return points
}

// pair kills the first run at one point, and the second at one of those that are left,
// by a number that is reduced to theirs: if there are fewer than was thought, that shows.
func pair(t *testing.T, role string, first, number, left int, scene func(testing.TB) Scene) {
	t.Helper()
	for left > 0 {
		s := scene(t)
		if _, dead := Run(t, role, first, s.Args...); !dead {
			shorter(t, s, first)
			return
		}
		second := 1 + number%left
		passed, dead := Run(t, role, second, s.Args...)
		if dead {
			t.Logf("the second one was killed at %d", second)
			finish(t, role, s)
			return
		}
		s.Want(t)
		left = passed // fewer than second
	}
}

func whole(t *testing.T, role string, scene func(testing.TB) Scene) int {
	t.Helper()
	s := scene(t)
	all, _ := Run(t, role, 0, s.Args...)
	if all == 0 {
		t.Fatalf("role %s passes no point", role)
	}
	s.Want(t)
	return all
}

func play(t *testing.T, role string, s Scene, point int) {
	t.Helper()
	if _, killed := Run(t, role, point, s.Args...); !killed {
		shorter(t, s, point)
		return
	}
	finish(t, role, s)
}

// shorter judges a run that came to its end with fewer points than the one that was counted:
// what a slow machine makes a role repeat are points too.
func shorter(t *testing.T, s Scene, point int) {
	t.Helper()
	t.Logf("it passed fewer than %d points this time", point)
	s.Want(t)
}

func finish(t *testing.T, role string, s Scene) {
	t.Helper()
	Run(t, role, 0, s.Args...)
	s.Want(t)
}
