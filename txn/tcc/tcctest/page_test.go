package tcctest_test

import (
	"context"
	"strings"
	"testing"

	"github.com/interlock-dev/interlock/txn/internal/txntest"
	"github.com/interlock-dev/interlock/txn/tcc"
	"github.com/interlock-dev/interlock/txn/tcc/tcctest"
)

// TestPage: the part on TCC in docs/how-to/testing-sagas.md has the code of example_test.go and the
// output of Explore, and describes each kind of finding.
func TestPage(t *testing.T) {
	_, page, _ := strings.Cut(txntest.ReadFile(t, "../../../docs/how-to/testing-sagas.md"), "\n## A TCC\n")
	txntest.Page(t, page, forgetful(t), tcctest.TryNotIdempotent, tcctest.TryVisible, tcctest.LateTryAccepted, tcctest.ConfirmNotIdempotent,
		tcctest.ConfirmRefuses, tcctest.CancelIncomplete, tcctest.CancelNotIdempotent, tcctest.CancelNeedsHold, tcctest.EmptyCancel,
		tcctest.HoldNeverExpires, tcctest.FreedUnasked, tcctest.InvariantBroken, tcctest.OutcomeDiffers, tcctest.NeverReached, tcctest.NeverEnds)
}

// byNumber are places whose Cancel needs the number.
type byNumber struct{ places }

func (p byNumber) Cancel(ctx context.Context, guest string, number *int) error {
	if number == nil {
		return nil
	}
	return p.places.Cancel(ctx, guest, number)
}

// forgetful returns their first finding.
func forgetful(t *testing.T) string {
	found, err := tcctest.Findings(t, func() tcctest.Scene {
		w := &tcctest.World{}
		w.Set("free rooms", "1")
		w.Set("free seats", "1")
		s := tcctest.Scene{Snapshot: w.Snapshot}
		b := trip{tcctest.Define(&s, "hotel", byNumber{places{w, "rooms"}}), tcctest.Define(&s, "airline", places{w, "seats"})}
		s.Run = func(ctx context.Context, m *tcc.Engine, id string) error { return b.book(ctx, m, id, "ada") }
		return s
	})
	if err != nil || len(found) == 0 {
		t.Fatal(found, err)
	}
	return found[0].String() + "\n"
}
