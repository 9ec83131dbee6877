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

// Scene is the environment of one run of a role.
type Scene struct {
	Args []string         // arguments of the role
	Want func(testing.TB) // checks the state after the role has ended
}

// Once kills a role at each of its points, runs it again to its end, and checks the scene.
// Each point has its own scene and parallel subtest: Once returns before they have run.
// It returns the number of points, and fails the test if there are none.
func Once(t *testing.T, role string, scene func(testing.TB) Scene) int {
	t.Helper()
	return Share(t, role, 0, 1, scene)
}

// Share runs Once for one of several places, such as databases, that divide the points. It
// kills at every of-th point, starting with the part-th, from 0, or at all points if [Full] is
// true.
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

// Part returns the part of a [Share] by PostgreSQL and MariaDB for a subtest of databases.Each.
func Part(t *testing.T) int {
	if strings.Contains(t.Name(), "mariadb") {
		return 1
	}
	return 0
}

// Seconds returns the points at which the second run of an in-memory process is killed, after
// the first was killed at first. It is every point if [Full] is true, else every third. Under
// the race detector, which takes ten times as long and finds little here, it is every twelfth.
// Over consecutive first points, all points are covered.
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

// Twice runs Once, and kills the second run too, at each of its points.
func Twice(t *testing.T, role string, scene func(testing.TB) Scene) {
	t.Helper()
	all := whole(t, role, scene)
	for first := 1; first <= all; first++ {
		t.Run(fmt.Sprintf("killed at %d of %d", first, all), func(t *testing.T) {
			t.Parallel()
			// The length of the second run depends on where the first one ended.
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

// Pairs runs Twice if [Full] is true. Otherwise it runs sample pairs: points spread over the
// first run, each with a random point of the second run. The choice is the same in every run.
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

// diceOf returns a random generator that is seeded by the name of the test.
func diceOf(t *testing.T) *rand.Rand {
	name := fnv.New64a()
	_, _ = name.Write([]byte(t.Name())) // never fails
	return rand.New(rand.NewPCG(name.Sum64(), 8))
}

// Full reports whether every pair of points is requested by INTERLOCK_CRASHES=full, which
// takes minutes.
func Full() bool { return os.Getenv("INTERLOCK_CRASHES") == "full" }

// spread returns n of the points, or all if there are fewer: one in each n-th part.
func spread(dice *rand.Rand, n, all int) (points []int) {
	n = min(n, all)
	for i := range n {
		from, to := i*all/n, (i+1)*all/n
		points = append(points, 1+from+dice.IntN(to-from))
	}
	return points
}

// pair kills the first run at one point, and the second at one of its remaining points,
// chosen by number modulo left. If there are fewer than left, it tries again with their number.
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

// shorter checks a run that finished with fewer points than counted before: repetitions
// on a slow machine count as points.
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
