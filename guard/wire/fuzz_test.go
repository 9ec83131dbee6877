package wire

import (
	"encoding/base64"
	"testing"
)

func FuzzEncoding(f *testing.F) {
	for _, s := range []string{"", "YQ", "YR", "YQ==", "Y\nQ", "-_"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if b, err := decode(s); err == nil && base64.RawURLEncoding.EncodeToString(b) != s {
			t.Fatalf("%q is another text of %q", s, b)
		}
	})
}
