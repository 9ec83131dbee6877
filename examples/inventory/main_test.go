package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

// TestMain is also the entry point of workers that a run starts.
func TestMain(m *testing.M) {
	if slices.Contains(os.Args[1:], "-work") {
		main()
		return
	}
	testbed.Main(m)
}

// TestLocksAreDown checks that a run ends soon if its workers cannot start.
func TestLocksAreDown(t *testing.T) {
	s := settings{kafka: "kafka://" + testbed.Shared(t, testbed.Kafka).Addr(), redis: "redis://127.0.0.1:1", name: rand.Text()[:12],
		postgres: databases.Open(t, testbed.Shared(t, testbed.Postgres), databases.Pgx).URL, session: time.Second, patience: time.Minute}
	ctx, cancel := context.WithTimeout(t.Context(), s.patience)
	defer cancel()
	var out bytes.Buffer
	if err := s.play(ctx, 20, &out); err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v:\n%s", err, &out)
	}
}

// TestDefences checks that with all defences nothing is wrong, although orders are repeated, a
// worker is killed and another one wakes up late. The later defences replace a disabled one, until
// the inbox is disabled too: then the audit finds errors.
func TestDefences(t *testing.T) {
	kafka, redis := testbed.Shared(t, testbed.Kafka), testbed.Shared(t, testbed.Redis)
	server := testbed.Shared(t, testbed.Postgres)
	for _, c := range []struct {
		without string
		right   bool
		caught  string // the defence that must have caught something
	}{
		{"", true, byInbox},
		{"lock,fence", true, byInbox},
		{"partition", true, byInbox},
		{"lock,fence,inbox", false, byCondition},
	} {
		t.Run("without "+c.without, func(t *testing.T) {
			t.Parallel()
			url := databases.Open(t, server, databases.Pgx).URL
			s := settings{kafka: "kafka://" + kafka.Addr(), redis: redis.URL(), postgres: url, name: rand.Text()[:12], without: map[string]bool{},
				session: time.Second, think: 20 * time.Millisecond, patience: 2 * time.Minute}
			if c.without != "" {
				testbed.OK(t, s.disable(c.without))
			}
			ctx, cancel := context.WithTimeout(t.Context(), s.patience)
			defer cancel()
			var out bytes.Buffer
			err := s.play(ctx, 200, &out)
			t.Log(out.String())
			if c.right && err != nil || !c.right && !errors.Is(err, errConvicted) {
				t.Error(err)
			}
			if !c.right && !strings.Contains(out.String(), "taken twice") {
				t.Error("nothing was taken twice")
			}
			for line := range strings.Lines(out.String()) {
				if f := strings.Fields(line); len(f) == 3 && f[0] == c.caught && f[2] == "0" {
					t.Error(strings.TrimSpace(line))
				}
			}
		})
	}
}
