package outbox

import (
	"maps"
	"testing"
)

func FuzzHeaders(f *testing.F) {
	for _, s := range []string{"", "{}", `{"a":"b"}`, `{"":"x"}`, "null", "[1]"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, stored string) {
		h, err := decoded(stored)
		if err != nil {
			return
		}
		if text, why := encoded(h); why == "" {
			if again, err := decoded(text); err != nil || !maps.Equal(again, h) {
				t.Fatalf("%q is %v, and written again %v, %v", stored, h, again, err)
			}
		}
	})
}
