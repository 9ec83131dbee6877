package postgres

import (
	"strings"
	"testing"
)

// Calls that wait together share a transaction with those of their kind. The order of the
// calls of one key stays, and of those that are alone with all others.
func TestCallsShareTransactions(t *testing.T) {
	t.Parallel()
	kinds := map[byte]callKind{'a': callAlone, 'g': callGive, 'u': callUnlock, 't': callTake, 'y': callTry, 'r': callRetry}
	for _, tt := range []struct {
		calls, want string // the kind and the key
		early       bool
		left        string
	}{
		{"t1 t2 t3", "t1+t2+t3", false, ""},
		{"t1 g2 y3 t4 u5", "g2 u5 t1+t4 y3", false, ""},
		{"g1 t1", "g1 t1", false, ""},
		{"t1 u1", "t1 u1", false, ""},
		{"t1 u1 t1", "t1 u1 t1", false, ""},
		{"t1 u1 t2", "t1 u1 t2", false, ""},
		{"t1 a0 t2 g3", "t1 a0 g3 t2", false, ""},
		{"t1 r2 t3", "t1 r2 t3", false, ""},
		{"t1 g2 t3 g4", "g2+g4", true, "t1 t3"},
		{"t1 t3", "t1+t3", true, ""},
		{"g1 g3", "g1+g3", true, ""},
		{"t1 u1 g2", "g2", true, "t1 u1"},
		{"t1 g2 a0", "g2 t1 a0", true, ""},
	} {
		var calls []*call
		for _, c := range strings.Fields(tt.calls) {
			calls = append(calls, &call{kind: kinds[c[0]], on: contender{key: int64(c[1]), identity: identity{name: c}}, members: 3})
		}
		b := batcher{keys: map[int64]callKind{}}
		arranged, left := b.arrange(calls, tt.early)
		got := ""
		for _, c := range arranged {
			if c.members > 0 {
				got += " " + c.on.name
			} else {
				got += "+" + c.on.name
			}
		}
		if rest := names(left); strings.TrimSpace(got) != tt.want || rest != tt.left {
			t.Errorf("%s: sent as%s, left %q, want %s and %q", tt.calls, got, rest, tt.want, tt.left)
		}
	}
	var many []*call
	for i := range 2*mostMembers + 1 {
		many = append(many, &call{kind: callTake, on: contender{key: int64(i)}})
	}
	b := batcher{keys: map[int64]callKind{}}
	arranged, _ := b.arrange(many, true)
	if len(arranged) != len(many) || arranged[0].members != mostMembers || arranged[2*mostMembers].members != 1 {
		t.Errorf("%d calls, the first transaction has %d", len(arranged), arranged[0].members)
	}
}

func names(calls []*call) string {
	var all []string
	for _, c := range calls {
		all = append(all, c.on.name)
	}
	return strings.Join(all, " ")
}
