package cli_test

import (
	"strings"
	"testing"

	"github.com/interlock-dev/interlock/internal/testbed"
)

func TestAdvise(t *testing.T) {
	t.Parallel()
	scripts(t, "advise", nil)
}

// TestAdviseAsks: on a terminal advise asks, explains, goes back, and prints the
// flags that avoid the questions.
func TestAdviseAsks(t *testing.T) {
	t.Parallel()
	c := open(t, program(t), "advise", "nodes")
	c.sees("What must never happen?")
	c.types("why\r")
	c.sees("Everything else follows from this")
	c.types("1\r")
	c.sees("What may happen while the lock service is down")
	c.types("back\r")
	c.sees("What must never happen?")
	c.types("2\r")
	c.sees("What may happen while the lock service is down")
	c.types("go-on\r")
	c.sees("advise nodes --answer invariant=overwrite --answer down=go-on")
	c.sees("agree by consensus")
	c.ends(0)
}

func TestDoctor(t *testing.T) {
	t.Parallel()
	program(t)
	limited := testbed.Redis(t, strings.Fields("--appendonly yes --appendfsync always --user app on >pw ~* &* +@all -subscribe")...)
	scripts(t, "doctor", map[string]string{
		"INTERLOCK_BACKEND": backends["redis"](t),
		"DURABLE":           "redis://" + testbed.Redis(t, "--appendonly", "yes", "--appendfsync", "always").Addr(),
		"EVICTING": "redis://" + testbed.Redis(t, "--appendonly", "yes", "--appendfsync", "always",
			"--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru").Addr(),
		"NOSUBSCRIBE": "redis://app:pw@" + limited.Addr(),
	})
}
