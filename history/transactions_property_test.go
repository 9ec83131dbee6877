package history

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/interlock-dev/interlock/internal/testbed"
)

// transaction is one of a random history. phase and saw belong to a search.
type transaction struct {
	begin, end int64
	kind       Kind
	ops        []ListOp

	phase phase
	saw   lists // when it started
}

type (
	phase int
	lists map[string][]int64
)

const (
	fresh phase = iota
	started
	committed
)

// randomTransactions overlaps transactions of two lists. Some read what is there at their end, not
// at their begin, or at one for each list, and a few appends are lost.
func randomTransactions(r *rand.Rand, blind bool) (s script, all []*transaction) {
	store, begun, value := lists{}, map[*transaction]lists{}, int64(0)
	for left := 2 + r.IntN(3); left > 0 || len(begun) > 0; {
		if left > 0 && (len(begun) == 0 || r.IntN(2) == 0) {
			t := &transaction{}
			for range 1 + r.IntN(2) {
				op := ListOp{Key: []string{"x", "y"}[r.IntN(2)], Seen: true}
				if r.IntN(3) > 0 {
					value++
					op.Append, op.Seen = value, !blind || r.IntN(2) == 0
				}
				t.ops = append(t.ops, op)
			}
			t.begin = s.add(Event{Kind: Invoke, Op: OpTransaction, Value: FormatListOps(t.ops)})
			all, begun[t], left = append(all, t), maps.Clone(store), left-1
			continue
		}
		open := slices.DeleteFunc(slices.Clone(all), func(t *transaction) bool { return begun[t] == nil })
		t := open[r.IntN(len(open))]
		views := []lists{begun[t], store}
		view := views[r.IntN(2)]
		delete(begun, t)
		t.kind = []Kind{OK, OK, OK, OK, OK, OK, Fail, Info}[r.IntN(8)]
		for i, op := range t.ops {
			if r.IntN(8) == 0 {
				view = views[r.IntN(2)]
			}
			if op.Seen {
				t.ops[i].Read = view[op.Key]
			}
		}
		t.end = s.add(Event{Kind: t.kind, Cause: t.begin, Value: FormatListOps(t.ops)})
		if t.kind == OK || t.kind == Info && r.IntN(2) == 0 {
			if lost := r.IntN(16) == 0; !lost {
				store = t.apply(store)
			}
		}
	}
	return s, all
}

func (t *transaction) apply(to lists) lists {
	to = maps.Clone(to)
	for _, op := range t.ops {
		if op.Append > 0 {
			to[op.Key] = append(slices.Clip(to[op.Key]), op.Append)
		}
	}
	return to
}

// readsFrom reports whether t can have read these lists.
func (t *transaction) readsFrom(l lists) bool {
	return t.kind != OK || !slices.ContainsFunc(t.ops, func(op ListOp) bool {
		return op.Seen && !slices.Equal(op.Read, l[op.Key])
	})
}

// conflicts reports whether another one has written its keys since it started.
func (t *transaction) conflicts(l lists) bool {
	return slices.ContainsFunc(t.ops, func(op ListOp) bool { return op.Append > 0 && len(l[op.Key]) > len(t.saw[op.Key]) })
}

// explained reports whether some order of starts and commits explains all reads. In a serial
// one, each transaction commits as it starts.
func explained(all []*transaction, l lists, serial bool) bool {
	complete := true
	for _, t := range all {
		if t.kind == Fail || t.phase == committed {
			continue
		}
		complete = complete && t.kind == Info && t.phase == fresh
		late := func(o *transaction) bool { return o.kind == OK && o.end < t.begin && o.phase != committed }
		was, next := t.phase, l
		switch {
		case was == started && t.conflicts(l), was == fresh && (!t.readsFrom(l) || slices.ContainsFunc(all, late)):
			continue
		case was == fresh && !serial:
			t.phase, t.saw = started, l
		default:
			t.phase, next = committed, t.apply(l)
		}
		if explained(all, next, serial) {
			return true
		}
		t.phase = was
	}
	return complete
}

// TestTransactionsAgainstBruteForce compares the search for cycles with a search of all orders. With
// snapshot isolation each append follows a read: two others that nobody reads exclude each
// other, which is no dependency.
func TestTransactionsAgainstBruteForce(t *testing.T) {
	for level, test := range map[string]struct {
		check  verdictOf
		serial bool
	}{"serializable": {CheckSerializable, true}, "snapshot isolation": {CheckSnapshotIsolation, false}} {
		t.Run(level, func(t *testing.T) {
			possible := map[bool]int{}
			for seed := range uint64(5_000) {
				s, all := randomTransactions(rand.New(rand.NewPCG(seed, 3)), test.serial)
				v, err := test.check(s.source())
				testbed.OK(t, err)
				want := explained(all, lists{}, test.serial)
				if v.OK() != want {
					for _, e := range s.events {
						t.Log(e.Seq, e.Kind, e.Cause, e.Value)
					}
					t.Fatalf("seed %d: an order exists: %v\n%v", seed, want, v)
				}
				possible[want]++
			}
			if min(possible[true], possible[false]) < 300 {
				t.Error(fmt.Sprint("an order exists: ", possible))
			}
		})
	}
}
