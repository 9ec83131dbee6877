package main

import (
	"bytes"
	"cmp"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/internal/testbed"
)

// TestMain is also the entry point of workers that a run starts.
func TestMain(m *testing.M) {
	if slices.Contains(os.Args[1:], "-as") {
		main()
		return
	}
	testbed.Main(m)
}

// TestDeadlocks checks that, in each deadlock of three processes over three systems, one wait is
// ended and the others continue. On an idle machine, where INTERLOCK_SOAK_DEADLOCKS sets how many,
// 99 of 100 must be found within a second. claim/deadlock asserts that in virtual time.
func TestDeadlocks(t *testing.T) {
	redis, etcd, pg := testbed.Redis(t), testbed.Etcd(t), testbed.Postgres(t)
	soak, bound := os.Getenv("INTERLOCK_SOAK_DEADLOCKS"), 10*time.Second
	if soak != "" {
		bound = time.Second
	}
	rounds, err := strconv.Atoi(cmp.Or(soak, "3"))
	testbed.OK(t, err)
	var out, errs bytes.Buffer
	s := settings{redis: "redis://" + redis.Addr(), etcd: "etcd://" + etcd.Addr(), postgres: pg.URL(), rounds: rounds}
	if err := conduct(t.Context(), s, &out, &errs); err != nil {
		t.Fatalf("%v:\n%s%s", err, &out, &errs)
	}
	t.Log(out.String())
	for _, want := range []string{"deadlock: parcel awaits deadlock/shelf, held by stock; stock awaits item 1, held by invoice; invoice awaits deadlock/label, held by parcel",
		"  stock -- awaits item 1, held by --> invoice\n", strconv.Itoa(rounds) + " deadlocks, one wait ended in each"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("it does not say %q:\n%s", want, out.String())
		}
	}
	_, times, _ := strings.Cut(out.String(), "(median), ")
	most, _, _ := strings.Cut(times, " (99 of 100)")
	if took, err := time.ParseDuration(most); err != nil || took > bound {
		t.Errorf("99 of 100 were found within %v, not %v: %v", took, bound, err)
	}
}
