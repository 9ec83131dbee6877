package cli

import (
	"strings"
	"testing"
)

func FuzzText(f *testing.F) {
	f.Add(hostile)
	f.Add("as it is")
	f.Fuzz(func(t *testing.T, s string) {
		for _, made := range []text{line("%s %v %-9s\n", s, s, s), table([][]string{{s, s}}), fields([2]string{s, s}), command(s)} {
			for _, r := range string(made) {
				if isControl(r) {
					t.Fatalf("%q of %q", r, made)
				}
			}
			if strings.Count(string(made), "\n") > 1 {
				t.Fatalf("%q makes lines of its own", made)
			}
		}
		if plain(plain(s)) != plain(s) {
			t.Fatalf("%q is escaped twice", s)
		}
	})
}

func FuzzOffers(f *testing.F) {
	f.Add("name\tabout `id`\n")
	f.Add("`id`\n:4\n")
	f.Fuzz(func(t *testing.T, s string) {
		var b strings.Builder
		if _, err := (&completionWriter{to: &b}).Write([]byte(s)); err != nil {
			t.Fatal(err)
		}
		if strings.ContainsAny(b.String(), "`$\\\"';&|<>") {
			t.Fatalf("%q offers %q", s, b.String())
		}
	})
}
