package kube

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	coordination "k8s.io/api/coordination/v1"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// emulated is the oldest version that the server can emulate. It still reports its
// own version, so other tests change the report.
const emulated = "1.33"

// TestAdvisory runs the suite of locks without tokens on a server that emulates an older one. It
// skips the tests that break the server, which the same code passes in TestSuite.
func TestAdvisory(t *testing.T) {
	old := testbed.KubeAPIServer(t, "--emulated-version="+emulated)
	drivertest.RunAdvisory(t, drivertest.Harness{
		Start: func(t *testing.T, _ bool) drivertest.Backend {
			b := start(t, old)
			b.advisory = true
			return withoutFaults{b}
		},
		TTL:        suiteTTL,
		Heartbeat:  paceOf(suiteTTL).quiet,
		DeadWaiter: 2 * time.Second,
		Names:      20,
		Without:    drivertest.FIFO | drivertest.Queue | drivertest.Servers,
	})
}

// withoutFaults is a backend whose server is not broken.
type withoutFaults struct{ *system }

func (withoutFaults) Faults() drivertest.Faults { return nil }

// testAdvisoryIsSwept: released Leases without tokens do not stay either.
func testAdvisoryIsSwept(s *scene) {
	a, err := OpenAdvisory(s.Context(), s.config(), &Options{Namespace: s.namespace})
	testbed.OK(s, err)
	defer a.Close(context.Background())
	for _, name := range []string{"job-1", "job/2"} {
		_, err := a.Acquire(s.Context(), driver.Request{Name: name, Owner: "o"})
		testbed.OK(s, err)
		testbed.OK(s, a.Release(s.Context(), name, "o"))
	}
	if left := s.sweptTo(a.d, sweepSize, 0); len(left) > 0 {
		s.Errorf("left: %v", left)
	}
}

// testAdvisoryBesideFenced: they exclude each other; the advisory term shows no
// token and keeps the base, and tokens rise over it.
func testAdvisoryBesideFenced(s *scene) {
	fenced := s.open(Options{})
	s.leases.replace(saysItIs("34"))
	a, err := OpenAdvisory(s.Context(), s.config(), &Options{Namespace: s.namespace})
	testbed.OK(s, err)
	defer a.Close(context.Background())
	s.leases.replace(nil)
	first := s.acquire(fenced, "n", "fenced")
	ask := driver.Request{Name: "n", Owner: "advisory", NoWait: true}
	if _, err := a.Acquire(s.Context(), ask); !errors.Is(err, interlock.ErrHeld) {
		s.Fatalf("beside a fenced holder: %v", err)
	}
	s.release(fenced, "n", "fenced")
	base, err := strconv.ParseInt(s.lease("n").Annotations[baseKey], 10, 64)
	testbed.OK(s, err)
	base += time.Hour.Microseconds() // ahead of the clock
	s.edit("n", func(l *coordination.Lease) { l.Annotations[baseKey] = strconv.FormatInt(base, 10) })
	s.sees(a.d, "n", "it is free", func(now sight) bool {
		seen, _ := now.base()
		return now.exists() && now.holder() == "" && seen == base
	})
	_, err = a.Acquire(s.Context(), ask)
	testbed.OK(s, err)
	if got := s.lease("n").Annotations[baseKey]; got != strconv.FormatInt(base, 10) {
		s.Errorf("the base is %s, and was %d", got, base)
	}
	if token, ok := TokenOf(s.lease("n")); ok {
		s.Errorf("token %d of an advisory term", token)
	}
	s.sees(fenced, "n", "it is taken", func(now sight) bool { return now.holder() == "advisory" })
	if _, err := s.try(fenced, "n", "late"); !errors.Is(err, interlock.ErrHeld) {
		s.Fatalf("beside an advisory holder: %v", err)
	}
	testbed.OK(s, a.Release(s.Context(), "n", "advisory"))
	if next := s.acquire(fenced, "n", "next"); next.Token <= first.Token {
		s.Errorf("token %d after %d", next.Token, first.Token)
	}
	if _, err := OpenAdvisory(s.Context(), s.config(), &Options{Seed: driver.Seed{After: first.Token}}); interlock.Kind(err) != interlock.Bug {
		s.Errorf("a seed without tokens: %v", err)
	}
	if g := a.Guarantees(); g.Class != interlock.Advisory || g.TokensSurvive != 0 || g.TokenFrom != "" {
		s.Errorf("it promises %+v", g)
	}
}

// saysItIs makes the server report a minor version.
func saysItIs(minor string) func(*http.Request, http.RoundTripper) (*http.Response, error) {
	return func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
		answer, err := next.RoundTrip(r)
		if err == nil && r.URL.Path == "/version" {
			answer.Body.Close()
			answer.Body = io.NopCloser(strings.NewReader(`{"major":"1","minor":"` + minor + `"}`))
		}
		return answer, err
	}
}
