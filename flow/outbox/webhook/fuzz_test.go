package webhook

import (
	"testing"
)

func FuzzAddress(f *testing.F) {
	for _, s := range []string{"https://example.org/hook", "http://", "ftp://x", "https://a:b@c", "//x", "%", "http://:80/"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, address string) {
		if u, err := parse(address); err == nil && (u.Hostname() == "" || u.Scheme != "http" && u.Scheme != "https") {
			t.Fatalf("%q is %v", address, u)
		}
	})
}
