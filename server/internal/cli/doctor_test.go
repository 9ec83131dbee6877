package cli_test

import (
	"strings"
	"testing"

	"github.com/interlock-dev/interlock/internal/testbed"
)

func TestDoctor(t *testing.T) {
	t.Parallel()
	program(t)
	limited := testbed.Redis(t, strings.Fields("--appendonly yes --appendfsync always --user app on >pw ~* &* +@all -subscribe")...)
	scripts(t, "doctor", map[string]string{
		"INTERLOCK_BACKEND": "redis://" + testbed.Redis(t).Addr(),
		"DURABLE":           "redis://" + testbed.Redis(t, "--appendonly", "yes", "--appendfsync", "always").Addr(),
		"EVICTING": "redis://" + testbed.Redis(t, "--appendonly", "yes", "--appendfsync", "always",
			"--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru").Addr(),
		"NOSUBSCRIBE": "redis://app:pw@" + limited.Addr(),
	})
}
