package twopc

import (
	"testing"
)

func FuzzRunName(f *testing.F) {
	for _, s := range []string{"transfer-42.0123456789ab", "a.vvvvvvvvvvvv", ".0123456789ab", "a.0123456789AB", "x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if r, err := parse(name); err == nil && r.String() != name {
			t.Fatalf("%q is %+v, which is %q", name, r, r.String())
		}
	})
}
