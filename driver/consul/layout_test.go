package consul

import (
	"strings"
	"testing"
)

// TestLayout: names that are paths are unchanged, and others do not change the meaning of a
// path.
func TestLayout(t *testing.T) {
	l := layout{"interlock/"}
	for name, want := range map[string]string{
		"nightly-report": "interlock/nightly-report/.lock",
		"a/b_c.d":        "interlock/a/b_c.d/.lock",
		"a//b":           "interlock/a/%2Fb/.lock",
		"/a/":            "interlock/%2Fa%2F/.lock",
		"a/../.lock":     "interlock/a/%2E./%2Elock/.lock",
		"50% of ü":       "interlock/50%25%20of%20%C3%BC/.lock",
	} {
		if got := l.lock(name); got != want {
			t.Errorf("%q is the key %q, want %q", name, got, want)
		}
	}
	for _, key := range []string{"interlock/a", "interlock//.lock", "interlock/%61/.lock", "interlock/%2/.lock", "other/a/.lock", l.base()} {
		if name, ok := l.name(key); ok {
			t.Errorf("%q is the key of %q", key, name)
		}
	}
}

// FuzzLayout: each name has its own key, whose path no server cleans.
func FuzzLayout(f *testing.F) {
	for _, name := range []string{"a", "a/b", "//", "..", "a/.lock", "%2F", "\xff\x00", "a/./b"} {
		f.Add(name)
	}
	l := layout{"interlock/"}
	f.Fuzz(func(t *testing.T, name string) {
		key := l.lock(name)
		back, ok := l.name(key)
		if back != name || ok != (name != "") {
			t.Fatalf("%q became %q, and that %q", name, key, back)
		}
		for segment := range strings.SplitSeq(strings.TrimSuffix(key, lockSuffix), "/") {
			if name != "" && (segment == "" || segment == "." || segment == "..") {
				t.Fatalf("%q has the segment %q", key, segment)
			}
		}
	})
}
