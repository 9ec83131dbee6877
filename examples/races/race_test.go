package main

import (
	"os"
	"slices"
	"testing"

	"github.com/interlock-dev/interlock/history"
	"github.com/interlock-dev/interlock/internal/testbed"
)

func TestMain(m *testing.M) { testbed.Main(m) }

// TestRaces checks that at least 95 of a hundred runs of each broken twin violate its rule. None
// of a thousand runs of the fixed one may. By default there are fewer runs; INTERLOCK_RACES=full
// makes them all.
func TestRaces(t *testing.T) {
	t.Parallel()
	brokenRuns, fixedRuns := 20, 25
	if os.Getenv("INTERLOCK_RACES") == "full" {
		brokenRuns, fixedRuns = 100, 1000
	}
	for kind, start := range servers {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			url := start(t).URL()
			for _, r := range races {
				if r.system == kind {
					t.Run(r.name, func(t *testing.T) { testRace(t, r, url, brokenRuns, fixedRuns) })
				}
			}
		})
	}
}

var servers = map[system]func(testing.TB, ...string) *testbed.Server{
	onPostgres: testbed.Postgres, onMariaDB: testbed.MariaDB, onRedis: testbed.Redis,
}

func testRace(t *testing.T, r race, url string, brokenRuns, fixedRuns int) {
	s, done, err := connect(t.Context(), r.system, url)
	testbed.OK(t, err)
	t.Cleanup(done)
	if r.prepare != nil {
		testbed.OK(t, r.prepare(t.Context(), s))
	}
	convicted := 0
	for seed := range brokenRuns {
		o := mustRun(t, r, s, r.broken, uint64(seed))
		if slices.ContainsFunc(o.Violations, func(v history.Violation) bool { return v.Rule == r.rule }) {
			convicted++
		} else {
			t.Logf("broken, seed %d: \n%v", seed, o)
		}
	}
	t.Logf("the broken twin was convicted in %d of %d runs", convicted, brokenRuns)
	if convicted*100 < brokenRuns*95 {
		t.Error("the broken twin comes through too often")
	}
	for seed := range fixedRuns {
		o := mustRun(t, r, s, r.fixed, uint64(seed))
		if !o.OK() || o.Done == 0 {
			t.Fatalf("fixed, seed %d:\n%v", seed, o)
		}
	}
}

func mustRun(t *testing.T, r race, s systems, play twin, seed uint64) outcome {
	t.Helper()
	o, err := r.run(t.Context(), s, play, seed)
	if err != nil {
		t.Fatalf("seed %d: %v\n%v", seed, err, o)
	}
	return o
}
