package cli_test

import (
	"strings"
	"syscall"
	"testing"

	"github.com/interlock-dev/interlock/internal/testbed"
)

// On a terminal it is shown who holds the lock, and what follows, before anything
// is done. Anything but yes is no.
func TestReleaseAsks(t *testing.T) {
	t.Parallel()
	program(t)
	url := backends["etcd"](t)
	holder := holding(t, url, "nightly", "--ttl", "3s")
	ask := func() *console {
		c := open(t, program(t), "locks", "release", "nightly", "--reason", "host is gone", "--backend", url)
		c.sees("nightly is held by ")
		c.sees(" with token ")
		c.sees("only a guard rejects its later writes")
		c.sees("release it? [y/N] ")
		return c
	}
	for _, answer := range []string{"\r", "n\r", "yess\r"} {
		c := ask()
		c.types(answer)
		c.sees("not released")
		c.ends(1)
	}
	c := ask()
	c.types(ctrlC)
	c.ends(-1) // by the signal
	if list, _ := run(t, 0, "locks", "ls", "--backend", url); !strings.Contains(list, "nightly") {
		t.Fatalf("without a yes it was released: %s", list)
	}
	c = ask()
	c.types("y\r")
	c.sees("nightly: taken from ")
	c.ends(0)
	wantCode(t, holder, 79)
}

// What was shown is what is released: a holder that came meanwhile keeps the lock.
func TestReleaseRefusesAnotherHolder(t *testing.T) {
	t.Parallel()
	program(t)
	url := backends["etcd"](t)
	first := holding(t, url, "nightly")
	c := open(t, program(t), "locks", "release", "nightly", "--reason", "host is gone", "--backend", url)
	c.sees("release it? [y/N] ")
	end(t, first, syscall.SIGTERM, 143)
	second := holding(t, url, "nightly")
	c.types("y\r")
	c.sees("not released: by now nightly is held by ")
	c.ends(75)
	end(t, second, syscall.SIGTERM, 143)
	if list, _ := run(t, 0, "locks", "history", "--backend", url); list != "" {
		t.Errorf("recorded is %s", list)
	}
}

// On databases the effect on a session lock is printed before the release.
func TestReleaseTellsItsPrice(t *testing.T) {
	t.Parallel()
	program(t)
	url := testbed.Postgres(t).URL()
	holding(t, url, "nightly")
	c := open(t, program(t), "locks", "release", "nightly", "--reason", "host is gone", "--backend", url)
	c.sees("whole session ended")
	c.sees("release it? [y/N] ")
	c.types("n\r")
	c.ends(1)
}

// A pooler that lends server processes to transactions is refused in words that
// say what to do, and that works.
func TestAPoolerNeedsTheTable(t *testing.T) {
	t.Parallel()
	program(t)
	server := testbed.Postgres(t)
	url := testbed.PgBouncer(t, server, "transaction").URL()
	_, said := run(t, 78, "lock", "nightly", "--backend", url, "--", "true")
	if !strings.Contains(said, "a pooler in transaction mode") || !strings.Contains(said, "?mode=table in the URL") || strings.Count(said, "\n") != 1 {
		t.Errorf("it said %q", said)
	}
	run(t, 0, "lock", "nightly", "--backend", tabled(url), "--", "true")
}

// A user without access gets an error of one line and its own exit code.
func TestReadingIsForbidden(t *testing.T) {
	t.Parallel()
	program(t)
	url := strings.Replace(mariadbURL(testbed.MariaDB(t)), "root@", "nobody:s3cret@", 1)
	t.Run("mysql", func(t *testing.T) { mustForbid(t, url) })
	k := testbed.SharedKube(t)
	t.Run("kube", func(t *testing.T) { mustForbid(t, kubeConfigFor(t, k, testbed.KubeUser)) })
	t.Run("kube, unknown", func(t *testing.T) { mustForbid(t, kubeConfigFor(t, k, "s3cret")) })
	t.Run("kube, tokens", func(t *testing.T) { tokensOnKube(t, k) })
}

func mustForbid(t *testing.T, url string) {
	t.Helper()
	_, said := run(t, 77, "locks", "ls", "--backend", url)
	if !strings.Contains(said, "does not permit this") || strings.Count(said, "\n") != 1 || strings.Contains(said, "s3cret") {
		t.Errorf("it said %q", said)
	}
}
