package main

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/internal/testbed"
)

// TestMain is also the entry point of tellers that a run starts.
func TestMain(m *testing.M) {
	if slices.Contains(os.Args[1:], "-teller") {
		main()
		return
	}
	testbed.Main(m)
}

// TestStoresAreDown: the program says so.
func TestStoresAreDown(t *testing.T) {
	s := settings{redis: "redis://127.0.0.1:1", etcd: "etcd://127.0.0.1:1", postgres: "postgres://127.0.0.1:1/test", length: time.Second}
	if err := start(t.Context(), s, os.Stdout); err == nil {
		t.Error("it ran without stores")
	}
}

// TestBank checks that no audit finds a wrong sum while tellers are killed, and stores are
// paused or restarted. INTERLOCK_SOAK_PERCOLATOR is how long it runs.
func TestBank(t *testing.T) {
	servers := []*testbed.Server{testbed.Redis(t, "--appendonly", "yes", "--appendfsync", "always"), testbed.Etcd(t), testbed.Postgres(t)}
	length, err := time.ParseDuration(cmp.Or(os.Getenv("INTERLOCK_SOAK_PERCOLATOR"), "5s"))
	testbed.OK(t, err)
	s := settings{redis: "redis://" + servers[0].Addr(), etcd: "etcd://" + servers[1].Addr(), postgres: servers[2].URL(), length: length}
	idle := s
	idle.length = 0
	if err := start(t.Context(), idle, io.Discard); err == nil {
		t.Error("a run without a transfer proves nothing, and succeeded")
	}
	var out bytes.Buffer
	ended := make(chan error)
	go func() { ended <- start(t.Context(), s, &out) }()
	for n := 0; ; n++ {
		select {
		case failed := <-ended:
			var transfers, killed, audits, sum int
			_, err := fmt.Sscanf(out.String(), "%d transfers, %d tellers killed, %d audits, each of %d", &transfers, &killed, &audits, &sum)
			t.Logf("%s%d faults of stores", out.String(), n)
			if failed != nil || err != nil || killed == 0 || transfers == 0 || sum != opening*len(accounts) {
				t.Fatalf("%v (%v):\n%s", failed, err, &out)
			}
			return
		case <-time.After(700 * time.Millisecond):
		}
		server := servers[n/2%len(servers)]
		if n%2 == 0 {
			server.Pause()
			time.Sleep(200 * time.Millisecond)
			server.Resume()
		} else {
			server.Restart()
		}
	}
}
