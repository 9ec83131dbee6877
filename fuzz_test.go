package interlock

import (
	"testing"
)

func FuzzToken(f *testing.F) {
	for _, s := range []string{"1", "890229109301653504", "-1", "01", "+1", "9223372036854775808"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		token, err := ParseToken(s)
		if err == nil && (!token.Valid() || token.String() != s) {
			t.Fatalf("%q is %d, printed %q", s, token, token)
		}
	})
}
