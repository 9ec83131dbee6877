package zookeeper

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
)

// TestRecordIsJSON: our encoder writes what the standard library writes.
func TestRecordIsJSON(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 3, 4, 5, 60, time.UTC)
	for _, owner := range []text{"host/7", "", `a"b`, `a\b`, "a<b>&c", "\n", "é", "\xff", "\x7f"} {
		r := record{Owner: owner, Asked: at, TTL: 30000, scale: scale{Base: 42, Anchor: -7}}
		if got, want := r.encode(), encode(r); !bytes.Equal(got, want) {
			t.Errorf("%q: %s, want %s", owner, got, want)
		}
	}
}

func TestNamesAreOneSegmentEach(t *testing.T) {
	t.Parallel()
	l := layout{root: "/app"}
	seen := map[string]string{}
	for _, name := range []string{
		"nightly-report", "a/b", "a%2Fb", ".", "..", "...", "%", " ", "x y", "\x00", "\xff", "ключ", "interlock.base",
		"_c_0f0e0d0c-0b0a-4908-8706-050403020100-lock-0000000007", "\ue000", "zookeeper", "%69nterlock.base",
	} {
		path := l.lock(name)
		segment, below := strings.CutPrefix(path, "/app/")
		if !below || strings.ContainsAny(segment, "/\x00") || strings.Trim(segment, ".") == "" || path == l.base() {
			t.Errorf("the node of %q is %q", name, path)
		}
		if other, taken := seen[path]; taken {
			t.Errorf("%q and %q lie at %q", name, other, path)
		}
		seen[path] = name
		if back, ok := l.name(path); !ok || back != name {
			t.Errorf("%q came back as %q, %v", name, back, ok)
		}
	}
	if got := l.lock("nightly-report_2.x:y"); got != "/app/nightly-report_2.x:y" {
		t.Errorf("the node of a plain name is %q", got)
	}
	for _, path := range []string{"/app/interlock.base", "/app/%6", "/app/%zz", "/app/%61", "/app/%2f", "/other/x", "/app"} {
		if name, ok := l.name(path); ok {
			t.Errorf("%q is read as the lock %q", path, name)
		}
	}
}

func TestRawNamesArePaths(t *testing.T) {
	t.Parallel()
	l := layout{root: "/app", raw: true}
	for _, name := range []string{"a", "a/b", "jobs/nightly report", "ключ/x"} {
		if err := l.check("x", name); err != nil || l.lock(name) != "/app/"+name {
			t.Errorf("%q: %v, at %q", name, err, l.lock(name))
		}
	}
	for _, name := range []string{"", "/a", "a/", "a//b", ".", "a/../b", "a/\x00", "\xff", "interlock.base", "a/interlock.x",
		"a/_c_0f0e0d0c-0b0a-4908-8706-050403020100-lock-0000000007", "\ue000"} {
		if err := l.check("x", name); !errors.Is(err, interlock.ErrName) || interlock.Kind(err) != interlock.Bug {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestTextKeepsEveryByte(t *testing.T) {
	t.Parallel()
	for _, want := range []string{"", "x", `"`, "ключ", "\xff\x00", "{}"} {
		r, ok := readRecord(encode(record{Owner: text(want), TTL: 5}))
		if string(r.Owner) != want || ok != (want != "") {
			t.Errorf("%q came back as %q, %v", want, r.Owner, ok)
		}
	}
}
