package proxy_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/guard/proxy"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/crash"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

// overtake pauses a process of token 1 at a place, runs the call of one of token 2, and resumes the
// first one. It returns the first one's output.
func overtake(t *testing.T, api *api, client, url, ttl, manner, place string) string {
	t.Helper()
	former := crash.Start(t, "owner", 0, client, url, api.URL, "1", ttl, manner, place)
	if line := former.Line(bound); line != "waiting" {
		t.Fatalf("the process reports %q", line)
	}
	former.Pause()
	newer := crash.Start(t, "owner", 0, client, url, api.URL, "2", "60s", "honest", nowhere)
	if line := newer.Line(bound); line != "200 <nil>" {
		t.Fatalf("the newer owner's call: %s", line)
	}
	if got := fmt.Sprint(api.seen()); got != "[2]" {
		t.Fatalf("calls %s before the former owner continues", got)
	}
	goOn(t, former, place)
	return former.Line(bound)
}

// goOn resumes a process that was paused at a place: its condition holds when it wakes
// up.
func goOn(t *testing.T, former *testbed.Process, place string) {
	t.Helper()
	if file, ok := strings.CutPrefix(place, socket); ok {
		f, err := os.Create(file)
		testbed.OK(t, err)
		f.Close()
	}
	fmt.Fprintln(former.Stdin())
	former.Resume()
}

// wantNotSent requires that the former owner sent nothing, and reports that.
func wantNotSent(t *testing.T, api *api, said string) {
	t.Helper()
	if got := fmt.Sprint(api.seen()); got != "[2]" || strings.Contains(said, "200") || strings.Contains(said, "outcome unknown") {
		t.Errorf("calls %s, and the former owner reports %q", got, said)
	}
}

// TestAPausedFormerOwnerDoesNotSend: it is paused between entering and sending, in
// another process than the newer owner, whose call waits until the database has
// ended the paused session. It does not send even if its claim still seems valid.
func TestAPausedFormerOwnerDoesNotSend(t *testing.T) {
	t.Parallel()
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		for _, manner := range []string{"honest", "stubborn"} {
			t.Run(manner, func(t *testing.T) {
				t.Parallel()
				db, api := prepared(t, open(t)), newAPI(t, nil)
				wantNotSent(t, api, overtake(t, api, db.Client, db.URL, "3s", manner, ready))
				// An unsent call is not in doubt.
				if r := record(t, db, "operation of 1"); r.Attempts != 0 {
					t.Errorf("recorded %+v", r)
				}
				if r := record(t, db, "operation of 2"); !r.Settled || r.Status != 200 {
					t.Errorf("recorded %+v", r)
				}
			})
		}
	}, databases.Pgx, databases.Maria)
}

// TestACarelessCallIsSentLate shows the broken variant: without the check before the
// write, the former owner's call is sent after the newer owner's.
func TestACarelessCallIsSentLate(t *testing.T) {
	t.Parallel()
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		db, api := prepared(t, open(t)), newAPI(t, nil)
		said := overtake(t, api, db.Client, db.URL, "3s", "honest", careless)
		if got := fmt.Sprint(api.seen()); got != "[2 1]" {
			t.Errorf("calls %s: it does not need the look (%s)", got, said)
		}
	}, databases.Pgx)
}

// TestTheStopThatRemains shows the documented limit: a pause after the last check,
// directly before the system call.
func TestTheStopThatRemains(t *testing.T) {
	t.Parallel()
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		db, api := prepared(t, open(t)), newAPI(t, nil)
		said := overtake(t, api, db.Client, db.URL, "3s", "honest", socket+filepath.Join(t.TempDir(), "go on"))
		if got := fmt.Sprint(api.seen()); got != "[2 1]" {
			t.Errorf("calls %s: the hole is closed, and the documentation is wrong (%s)", got, said)
		}
	}, databases.Pgx)
}

// TestLooseBetweenProcesses: only the claim's clock prevents a paused owner from
// sending.
func TestLooseBetweenProcesses(t *testing.T) {
	t.Parallel()
	url := testbed.Redis(t).URL()
	api := newAPI(t, nil)
	former := crash.Start(t, "owner", 0, "redis", url, api.URL, "1", "2s", "honest", ready)
	if line := former.Line(bound); line != "waiting" {
		t.Fatal(line)
	}
	former.Pause()
	c := grant(3, 2*time.Second) // a higher token than the former owner's
	testbed.Eventually(t, "the claim is over", bound, func() bool { return !c.Valid() })
	goOn(t, former, ready)
	if line := former.Line(bound); !strings.Contains(line, "expired") || len(api.seen()) != 0 {
		t.Errorf("calls %v, and it reports %q", api.seen(), line)
	}
	api = newAPI(t, nil)
	said := overtake(t, api, "redis", url, "1m", "stubborn", ready)
	if got := fmt.Sprint(api.seen()); got != "[2 1]" {
		t.Errorf("calls %s: the hole is closed, and the documentation is wrong (%s)", got, said)
	}
}

// testACrashAfterTheCallForgetsNothing: the mark of a sent call remains, although the transaction
// that held it was not committed.
func testACrashAfterTheCallForgetsNothing(t *testing.T, db *databases.DB) {
	api := newAPI(t, nil)
	newer := crash.Start(t, "owner", 0, db.Client, db.URL, api.URL, "2", "60s", "honest", dies)
	newer.Wait(bound)
	_, err := caller(t, db, nil).Do(t.Context(), grant(1, bound), "api", "late", post(transport(t), api.URL, "1"))
	if stale, found := errors.AsType[*interlock.StaleTokenError](err); !found || stale.Seen != token(2) || fmt.Sprint(api.seen()) != "[2]" {
		t.Errorf("calls %v: %v", api.seen(), err)
	}
}

// TestCrashes kills a caller at each of its points, and restarts it. With a key the call takes
// effect once. Without one it is sent at most once, and no answer denies a call that may have been
// sent.
func TestCrashes(t *testing.T) {
	t.Parallel()
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		for _, mode := range map[string][]string{databases.Pgx: {"repeat", "refuse"}, databases.Maria: {"refuse"}}[open(t).Client] {
			t.Run(mode, func(t *testing.T) {
				t.Parallel()
				points := crash.Once(t, "worker", func(tb testing.TB) crash.Scene {
					db, api := prepared(tb, open(tb)), newAPI(tb, nil)
					return crash.Scene{Args: []string{db.Client, db.URL, api.URL, mode}, Want: func(tb testing.TB) {
						tb.Helper()
						wantOnce(tb, mode, record(tb, db, "payout"), api.seenKeys())
					}}
				})
				// BEGIN, enter, record, COMMIT and after it; BEGIN, enter, send and after
				// it, record, COMMIT and after it.
				if points != 12 {
					t.Errorf("%d points", points)
				}
			})
		}
	}, databases.Pgx, databases.Maria)
}

func wantOnce(tb testing.TB, mode string, r proxy.Record, keys []string) {
	tb.Helper()
	effects := map[string]bool{}
	for _, k := range keys {
		effects[k] = true
	}
	switch {
	case mode == "repeat":
		if !r.Settled || r.Status != 200 || len(effects) != 1 || !effects[proxy.Key("api", "payout")] {
			tb.Errorf("recorded %+v, sent with keys %v", r, keys)
		}
	case len(keys) > 1, r.Settled != (r.Status == 200), r.Settled && len(keys) != 1, r.Attempts != 1:
		tb.Errorf("recorded %+v, sent %d times", r, len(keys))
	}
}
