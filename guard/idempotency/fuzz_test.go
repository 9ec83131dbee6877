package idempotency

import (
	"testing"
)

func FuzzPoints(f *testing.F) {
	for _, s := range []string{"", "[]", `[{"name":"a","result":1}]`, `[{"name":"a"}]`, "null", "{"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		p, err := parsePoints(text)
		if err != nil {
			return
		}
		if next, kept, err := p.with("another", 7); err == nil {
			if again, err := parsePoints(kept); err != nil || len(again) != len(next) {
				t.Fatalf("%q: %q, %v", text, kept, err)
			}
		}
	})
}
