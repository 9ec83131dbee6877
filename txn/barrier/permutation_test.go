package barrier_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/txn/barrier"
	"github.com/interlock-dev/interlock/txn/branch"
)

// oracle returns the expected answer of each call of a branch, from the protocol, without rows. A
// refusing one has no seat at first, and one later, which must not change the answers.
type oracle struct {
	refusing, asked, undone, sold bool
	effects                       map[string]int
}

func (o *oracle) answer(op branch.Operation) string {
	held := o.asked && !o.refusing
	switch {
	case op == branch.Try && o.undone && (o.refusing && o.asked):
		return "refused"
	case op == branch.Try && o.undone:
		return "cancelled"
	case op == branch.Try:
		if !o.asked && !o.refusing {
			o.effects["hold"]++
		}
		o.asked = true
		if o.refusing {
			return "refused"
		}
		return "hold h1"
	case op == branch.Confirm && held && !o.undone:
		if !o.sold {
			o.effects["sell h1"]++
		}
		o.sold = true
		return "done"
	case op == branch.Confirm, o.sold:
		return "violation"
	case held && !o.undone:
		o.effects["free h1"]++
	}
	o.undone = true
	return "done"
}

// sequences returns all different sequences, up to a length, of calls from all.
func sequences(all []branch.Operation, length int) (found [][]branch.Operation) {
	seen := map[string]bool{}
	var extend func(done, rest []branch.Operation)
	extend = func(done, rest []branch.Operation) {
		if name := fmt.Sprint(done); len(done) > 0 && !seen[name] {
			seen[name] = true
			found = append(found, slices.Clone(done))
		}
		for i := range rest {
			if len(done) < length {
				extend(append(slices.Clone(done), rest[i]), slices.Delete(slices.Clone(rest), i, i+1))
			}
		}
	}
	extend(nil, all)
	return found
}

var multiset = []branch.Operation{branch.Try, branch.Try, branch.Confirm, branch.Cancel, branch.Cancel}

func TestSequences(t *testing.T) {
	// 3, 8, 18, 30 and 30 sequences of the lengths 1 to 5.
	if n := len(sequences(multiset, 5)); n != 89 {
		t.Errorf("%d sequences", n)
	}
}

// answer makes a call, and returns its outcome in one word.
func (f form) answer(t *testing.T, w world, name string, op branch.Operation, id string) string {
	ctx := calling(t.Context(), name, op)
	var h Hold
	var err error
	word := "done"
	switch op {
	case branch.Try:
		h, err = f.try(ctx, w, id)
		word = "hold " + h.ID
	case branch.Confirm:
		err = f.confirm(ctx, w)
	default:
		err = f.cancel(ctx, w)
	}
	return wordOf(err, word)
}

// testPermutations: empty cancels, late tries, duplicates, confirms without a try and cancels after
// a confirm, in every order up to the length of five.
func testPermutations(t *testing.T, w world) {
	forms, every := []form{owned}, 8
	if w.Client == databases.Pgx || w.Client == databases.MariaInlined { // the others send the same statements
		forms, every = append(forms, lent, outside), 1
	}
	for _, f := range forms {
		for _, refusing := range []bool{false, true} {
			for i, sequence := range sequences(multiset, 5) {
				if i%every != 0 {
					continue
				}
				name := fmt.Sprintf("%s_%v_%d", f.name, refusing, i)
				o := &oracle{refusing: refusing, effects: map[string]int{}}
				id := "h1"
				if refusing {
					id = ""
				}
				for n, op := range sequence {
					want := o.answer(op)
					if got := f.answer(t, w, name, op, id); got != want {
						t.Errorf("%s %v: call %d: %q, want %q", name, sequence, n+1, got, want)
					}
					if op == branch.Try { // what another run of the function would do
						id = "h2"
					}
				}
				got := w.effects(t, name)
				if refusing && f.name == outside.name {
					delete(got, "hold") // was rolled back by its own transaction
				}
				if !maps.Equal(got, o.effects) {
					t.Errorf("%s %v: effects %v, want %v", name, sequence, got, o.effects)
				}
			}
		}
	}
}

// wordOf returns an answer in one word.
func wordOf(err error, word string) string {
	class, _ := branch.ClassOf(err)
	switch {
	case err == nil:
		return word
	case class == branch.ClassFail && strings.Contains(err.Error(), barrier.ErrCancelled.Error()):
		return "cancelled"
	case class == branch.ClassFail && strings.Contains(err.Error(), barrier.ErrViolation.Error()):
		return "violation"
	case class == branch.ClassFail && err.Error() == errNoSeat.Error():
		return "refused"
	case interlock.Kind(err) == interlock.Retryable:
		return "again"
	}
	return fmt.Sprintf("%v: %v", class, err)
}
