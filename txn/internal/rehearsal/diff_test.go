package rehearsal

import (
	"slices"
	"strings"
	"testing"
)

func TestDiff(t *testing.T) {
	for _, c := range [][3]string{
		{"", "", ""},
		{"a b c", "a b c", ""},
		{"a b c", "a c", "- b"},
		{"a c", "a b c", "+ b"},
		{"a b c d", "a x c y", "- b|+ x|- d|+ y"},
		{"a b", "b a", "- a|+ a"},
		{"", "a", "+ a"},
		{"a", "", "- a"},
	} {
		if got := strings.ReplaceAll(Diff(strings.Fields(c[0]), strings.Fields(c[1])), "\n", "|"); got != c[2] {
			t.Errorf("%q, %q: %q, want %q", c[0], c[1], got, c[2])
		}
	}
	long := Diff(nil, slices.Repeat([]string{"x"}, 10_000))
	if n := strings.Count(long, "\n"); n != mostLines {
		t.Errorf("%d lines", n)
	}
}
