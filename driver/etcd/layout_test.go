package etcd

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/testbed"
)

func TestNamesAreEscapedInjectively(t *testing.T) {
	t.Parallel()
	names := []string{"a", "a/b", "a/", "/a", "/", "//", "a%2Fb", "a%252Fb", "%", "%25", "a%b", "a-b", "\x00", "\xff"}
	for _, prefix := range []string{"", "locks/"} {
		l := layout{prefix: prefix}
		seen := map[string]string{}
		for _, n := range names {
			key := slot(l.line(n), 0x1f, 2)
			if back, ok := l.name(key); !ok || back != n {
				t.Errorf("%q in %q reads back as %q, %v", n, key, back, ok)
			}
			lines := 0
			l.lines(key, func(line string) {
				lines++
				if line != l.line(n) {
					t.Errorf("%q is also in %q", n, line)
				}
			})
			if lines != 1 || seen[l.line(n)] != "" {
				t.Errorf("%q is in %d lines, one of which is that of %q", n, lines, seen[l.line(n)])
			}
			seen[l.line(n)] = n
		}
	}
}

func TestPlainNamesAreThoseOfOtherClients(t *testing.T) {
	t.Parallel()
	if got := (layout{}).line("nightly"); got != "nightly/" {
		t.Fatal(got)
	}
	if got := (layout{raw: true}).line("jobs/nightly"); got != "jobs/nightly/" {
		t.Fatal(got)
	}
}

func TestKeysThatAreNoContenders(t *testing.T) {
	t.Parallel()
	l := layout{prefix: "p/"}
	for _, key := range []string{"p/interlock.base", "p/x", "q/a/1", "p//1", "p/a/b/1", "p/a%/1"} {
		if name, ok := l.name(key); ok {
			t.Errorf("%q is read as a contender for %q", key, name)
		}
	}
	if name, ok := (layout{raw: true}).name("a/b/1"); !ok || name != "a/b" {
		t.Error(name, ok)
	}
}

// FuzzName: the name read from any key maps to its line.
func FuzzName(f *testing.F) {
	f.Add("p/a%2Fb/1f-x")
	f.Add("p/%25/1")
	f.Fuzz(func(t *testing.T, key string) {
		l := layout{prefix: "p/"}
		name, ok := l.name(key)
		if !ok {
			return
		}
		found := false
		l.lines(key, func(line string) { found = found || line == l.line(name) })
		if !found {
			t.Fatalf("%q is read as %q, whose line is %q", key, name, l.line(name))
		}
	})
}

// TestRecordIsJSON: our encoder writes what the standard library writes.
func TestRecordIsJSON(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 3, 4, 5, 60, time.UTC)
	for _, owner := range []string{"host/7", "", `a"b`, `a\b`, "a<b>&c", "\n", "é", "\xff", "\x7f"} {
		r := record{Owner: owner, Base: 42, Asked: at}
		want, err := json.Marshal(r)
		if got := r.encode(); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%q: %s, want %s, %v", owner, got, want, err)
		}
	}
}

func TestOptions(t *testing.T) {
	t.Parallel()
	for _, bad := range []time.Duration{-1, time.Millisecond, 999 * time.Millisecond, 25 * time.Hour} {
		if _, err := Open(t.Context(), nil, &Options{TTL: bad}); interlock.Kind(err) != interlock.Bug {
			t.Errorf("TTL %v: %v", bad, err)
		}
	}
	var none *Options
	o, err := none.complete()
	if err != nil || o.TTL != 30*time.Second || o.Now == nil {
		t.Error(o, err)
	}
	if p := paceOf(1500 * time.Millisecond); p.seconds != 2 {
		t.Errorf("1.5 s are asked for as %d s", p.seconds)
	}
}

// TestRawNamesNest: the documented cost of Options.RawNames, which escaping avoids.
func TestRawNamesNest(t *testing.T) {
	t.Parallel()
	server := serverFor(t)
	raw := open(t, dial(t, server.Addr()), &Options{RawNames: true})
	inner := ask("a/b", "inner")
	mustAcquire(t, raw, inner)
	outer := ask("a", "outer")
	done := queue(t, raw, outer)
	mustRelease(t, raw, inner)
	if o := testbed.Receive(t, done, "the outer lock"); o.Err != nil {
		t.Fatal(o.Err)
	}

	escaped := open(t, dial(t, server.Addr()), &Options{Prefix: "ns/"})
	mustAcquire(t, escaped, ask("a/b", "inner"))
	outer = ask("a", "outer")
	outer.NoWait = true
	mustAcquire(t, escaped, outer)
}
