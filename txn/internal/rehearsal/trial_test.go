package rehearsal

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
)

// TestNothingIsDoneBehindACrash: not even an append that outlasts the coordinator's
// context.
func TestNothingIsDoneBehindACrash(t *testing.T) {
	for chosen, kept := range map[int]int{0: 2, 1: 0, 2: 1, 3: 1, 4: 2} { // around two appends
		store, ended := memory.NewJournal(), false
		l := &Life{Chosen: chosen, End: func(cause error) { ended = errors.Is(cause, ErrCrashed) }}
		j := Journal{Journal: store, Life: l}
		for n := range 2 {
			err := j.Append(context.Background(), []driver.Append{{Transaction: "t", Type: "x:y", After: int64(n), Due: time.Now(),
				Records: []driver.Record{{Kind: "k"}}}})[0]
			if crashed := chosen > 0 && chosen <= 2*n+2; crashed != errors.Is(err, ErrCrashed) || !crashed && err != nil {
				t.Errorf("crashed at %d, append %d: %v", chosen, n+1, err)
			}
		}
		_, records, err := store.Read(context.Background(), "t", 0)
		if err != nil || len(records) != kept {
			t.Errorf("crashed at %d: %d records, %v", chosen, len(records), err)
		}
		if at := l.Crashed(); ended != (chosen > 0) || (at != nil) != (chosen > 0) {
			t.Errorf("crashed at %d: %+v, ended %v", chosen, at, ended)
		}
		if err := l.Pass(Point{}); (err != nil) != (chosen > 0) {
			t.Errorf("crashed at %d, and then: %v", chosen, err)
		}
	}
}

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
