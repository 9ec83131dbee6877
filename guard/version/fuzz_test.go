package version

import (
	"testing"
)

func FuzzStamp(f *testing.F) {
	for _, s := range []string{"", "10000000000000000007tie", "0xxxxxxxxxxxxxxxxxxx", "00000000000000000000", "0-000000000000000000", "0+000000000000000007", "20000000000000000007"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		v, err := parseStamp(text)
		if err != nil {
			return
		}
		if back := stampText(Change{Stamp: v.Stamp, Terminal: v.Terminal}); back != text {
			t.Fatalf("%q is %+v, which is %q", text, v, back)
		}
	})
}
