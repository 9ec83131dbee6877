package main

import (
	"bytes"
	"cmp"
	"context"
	"os"
	"strings"
	"testing"

	"github.com/interlock-dev/interlock/internal/testbed"
)

// TestMain is also the entry point of workers that a run starts.
func TestMain(m *testing.M) {
	for _, arg := range os.Args[1:] {
		if arg == "-as" {
			main()
		}
	}
	testbed.Main(m)
}

// TestDeadlocks checks that, in each deadlock of three processes over three systems, one wait is
// ended and the others continue.
func TestDeadlocks(t *testing.T) {
	redis, etcd, pg := testbed.Redis(t), testbed.Etcd(t), testbed.Postgres(t)
	rounds := cmp.Or(os.Getenv("INTERLOCK_SOAK_DEADLOCKS"), "3")
	var out, errs bytes.Buffer
	code := run(context.Background(), []string{"-redis", "redis://" + redis.Addr(), "-etcd", "etcd://" + etcd.Addr(), "-postgres", pg.URL(), "-rounds", rounds}, nil, &out, &errs)
	if code != 0 {
		t.Fatalf("it ended with %d:\n%s%s", code, out.String(), errs.String())
	}
	t.Log(out.String())
	for _, want := range []string{"deadlock: parcel awaits deadlock/shelf, held by stock; stock awaits item 1, held by invoice; invoice awaits deadlock/label, held by parcel",
		"  stock -- awaits item 1, held by --> invoice\n", rounds + " deadlocks, one wait ended in each"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("it does not say %q:\n%s", want, out.String())
		}
	}
}

func TestMisuse(t *testing.T) {
	for _, args := range [][]string{{"-rounds", "0"}, {"more"}, {"-nothing"}} {
		if code := run(t.Context(), args, nil, &bytes.Buffer{}, &bytes.Buffer{}); code != 2 {
			t.Errorf("%q ends with %d", args, code)
		}
	}
	if err := serve(t.Context(), settings{as: "nobody"}, nil, nil); err == nil {
		t.Error("a worker with an unknown name was served")
	}
}
