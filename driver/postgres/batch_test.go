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
	for calls, want := range map[string]string{ // the kind and the key
		"t1 t2 t3":       "t1+t2+t3",
		"t1 g2 y3 t4 u5": "g2 u5 t1+t4 y3",
		"g1 t1":          "g1 t1",
		"t1 u1":          "t1 u1",
		"t1 u1 t1":       "t1 u1 t1",
		"t1 u1 t2":       "t1 u1 t2",
		"t1 a0 t2 g3":    "t1 a0 g3 t2",
		"t1 r2 t3":       "t1 r2 t3",
		"t1 g2 t3 g4":    "g2+g4 t1+t3",
	} {
		var all []*call
		for _, c := range strings.Fields(calls) {
			all = append(all, &call{kind: kinds[c[0]], on: contender{key: int64(c[1]), identity: identity{name: c}}, members: 3})
		}
		b := batcher{keys: map[int64]callKind{}}
		got := ""
		for _, c := range b.arrange(all) {
			if c.members > 0 {
				got += " " + c.on.name
			} else {
				got += "+" + c.on.name
			}
		}
		if strings.TrimSpace(got) != want {
			t.Errorf("%s: sent as%s, want %s", calls, got, want)
		}
	}
	var many []*call
	for i := range 2*mostMembers + 1 {
		many = append(many, &call{kind: callTake, on: contender{key: int64(i)}})
	}
	b := batcher{keys: map[int64]callKind{}}
	arranged := b.arrange(many)
	if len(arranged) != len(many) || arranged[0].members != mostMembers || arranged[2*mostMembers].members != 1 {
		t.Errorf("%d calls, the first transaction has %d", len(arranged), arranged[0].members)
	}
}
