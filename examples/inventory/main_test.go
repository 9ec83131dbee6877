package main

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

// TestMain is also the entry point of workers that a run starts.
func TestMain(m *testing.M) {
	for _, arg := range os.Args[1:] {
		if arg == "-work" {
			main()
		}
	}
	testbed.Main(m)
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
			args := []string{"-kafka", "kafka://" + kafka.Addr(), "-redis", redis.URL(), "-postgres", url, "-session", "1s", "-orders", "200"}
			if c.without != "" {
				args = append(args, "-without", c.without)
			}
			var out, errs bytes.Buffer
			code := run(t.Context(), args, &out, &errs)
			t.Logf("%s%s", &out, &errs)
			if (code == 0) != c.right || !c.right && !strings.Contains(errs.String(), errConvicted.Error()) {
				t.Errorf("code %d", code)
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

func TestUsage(t *testing.T) {
	for _, args := range [][]string{{"-without", "hope"}, {"-think", "x"}} {
		var out, errs bytes.Buffer
		if code := run(t.Context(), args, &out, &errs); code != 2 || errs.Len() == 0 {
			t.Errorf("%v: %d, %s", args, code, &errs)
		}
	}
	var out, errs bytes.Buffer
	if code := run(t.Context(), []string{"-postgres", "postgres://127.0.0.1:1/x"}, &out, &errs); code != 1 {
		t.Errorf("%d, %s", code, &errs)
	}
}
