package cli_test

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/interlock-dev/interlock/internal/testbed"
)

// watchedLine is a line of locks watch -o json.
type watchedLine struct {
	At, Change, Name string
	Holder           *struct{ Owner, Token string }
	Waiters          []struct{ Owner string }
}

func watching(t *testing.T, url string, args ...string) *testbed.Process {
	t.Helper()
	return testbed.Command(t, program(t), append([]string{"locks", "watch", "--backend", url, "--timeout", "1s"}, args...)...)
}

// next reads lines until one has this change of a lock.
func next(t *testing.T, p *testbed.Process, name, change string) watchedLine {
	t.Helper()
	for {
		line := p.Line(patience)
		var w watchedLine
		if err := json.Unmarshal([]byte(line), &w); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if w.Name == name && w.Change == change {
			return w
		}
	}
}

// TestHoldWithoutReader: a lock whose grant nobody can read is released.
func TestHoldWithoutReader(t *testing.T) {
	t.Parallel()
	url := backends["etcd"](t)
	p := testbed.Command(t, "bash", "-c", `exec > >(:); wait $!; "$0" locks hold nightly --ttl 1h --backend "$1"; exit $?`, program(t), url)
	wantCode(t, p, 64)
	run(t, 0, "lock", "nightly", "--no-wait", "--backend", url, "--", "true")
}

// holding takes a lock and returns when it is held.
func holding(t *testing.T, url, name string, args ...string) *testbed.Process {
	t.Helper()
	p := testbed.Command(t, program(t), slices.Concat([]string{"locks", "hold", "--backend", url}, args, []string{"--", name})...)
	var grant struct{ Lock string }
	if line := p.Line(patience); json.Unmarshal([]byte(line), &grant) != nil || grant.Lock != name {
		t.Fatalf("it said %q; %s", line, p.Stderr())
	}
	return p
}

func end(t *testing.T, p *testbed.Process, s syscall.Signal, code int) {
	t.Helper()
	p.Signal(s)
	wantCode(t, p, code)
}

// Every lasting state is printed: the first one, a holder, waiters, the end, and only
// below the prefix. A signal ends the watch with 0. The suites of the other drivers
// show the same.
func TestWatch(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, url string) {
		first := holding(t, url, "nightly")
		w := watching(t, url, "-o", "json", "--", "night")
		held := next(t, w, "nightly", "held")
		if held.Holder == nil || held.Holder.Owner == "" || held.Holder.Token == "" || held.At == "" {
			t.Fatalf("%+v", held)
		}
		other := holding(t, url, "weekly")
		end(t, first, syscall.SIGTERM, 143)
		if w := next(t, w, "nightly", "free"); w.Holder != nil {
			t.Fatalf("%+v", w)
		}
		second := holding(t, url, "nightly")
		if w := next(t, w, "nightly", "held"); w.Holder.Owner == held.Holder.Owner || w.Holder.Token == held.Holder.Token {
			t.Fatalf("%+v after %+v", w, held)
		}
		end(t, second, syscall.SIGTERM, 143)
		next(t, w, "nightly", "free")
		end(t, other, syscall.SIGTERM, 143)
		end(t, w, syscall.SIGTERM, 0)
		if said := w.Stderr(); said != "" {
			t.Errorf("it said %q", said)
		}
	})
}

// A crashed holder is reported when its lease expires.
func TestWatchSeesAnExpiry(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, url string) {
		p := holding(t, url, "nightly", "--ttl", "2s")
		w := watching(t, url, "-o", "json")
		next(t, w, "nightly", "held")
		end(t, p, syscall.SIGKILL, -1)
		next(t, w, "nightly", "free")
		end(t, w, syscall.SIGINT, 0)
	})
}

// An outage is reported once, and changes during it are printed afterwards.
func TestWatchSurvivesAnInterruption(t *testing.T) {
	t.Parallel()
	program(t)
	server := testbed.Redis(t)
	through := testbed.NewProxy(t, server.Addr())
	w := watching(t, "redis://"+through.Addr(), "-o", "json")
	holding(t, "redis://"+server.Addr(), "nightly")
	next(t, w, "nightly", "held")
	through.Cut()
	saysOf(t, w, `interrupted: .+; trying again\n`)
	holding(t, "redis://"+server.Addr(), "weekly")
	through.Heal()
	next(t, w, "weekly", "held")
	saysOf(t, w, `redis://.+ answers again\n`)
	end(t, w, syscall.SIGINT, 0)
	if n := strings.Count(w.Stderr(), "interrupted"); n != 1 {
		t.Errorf("reported %d times: %s", n, w.Stderr())
	}
}

// Ends during an outage are printed as well.
func TestWatchSeesTheEndAfterAnInterruption(t *testing.T) {
	t.Parallel()
	program(t)
	server := testbed.Redis(t)
	through := testbed.NewProxy(t, server.Addr())
	holder := holding(t, "redis://"+server.Addr(), "nightly")
	w := watching(t, "redis://"+through.Addr(), "-o", "json")
	next(t, w, "nightly", "held")
	through.Cut()
	saysOf(t, w, `interrupted: `)
	end(t, holder, syscall.SIGTERM, 143)
	through.Heal()
	next(t, w, "nightly", "free")
	end(t, w, syscall.SIGINT, 0)
}

// saysOf waits for a pattern on the standard error.
func saysOf(t *testing.T, p *testbed.Process, pattern string) {
	t.Helper()
	wanted := regexp.MustCompile(pattern)
	testbed.Eventually(t, pattern, patience, func() bool { return wanted.MatchString(p.Stderr()) })
}
