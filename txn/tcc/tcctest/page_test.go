package tcctest_test

import (
	"context"
	"strings"
	"testing"

	"github.com/interlock-dev/interlock/txn/internal/txntest"
	"github.com/interlock-dev/interlock/txn/tcc"
	"github.com/interlock-dev/interlock/txn/tcc/tcctest"
)

// TestPage: the code on TCC in docs/how-to/testing-sagas.md is that of example_test.go, what it
// says Explore prints is what it prints, and it describes each kind of finding.
func TestPage(t *testing.T) {
	_, page, _ := strings.Cut(txntest.ReadFile(t, "../../../docs/how-to/testing-sagas.md"), "\n## A TCC\n")
	txntest.Page(t, page, forgetful(t), tcctest.TryNotIdempotent, tcctest.TryVisible, tcctest.LateTryAccepted, tcctest.ConfirmNotIdempotent,
		tcctest.ConfirmRefuses, tcctest.CancelIncomplete, tcctest.CancelNotIdempotent, tcctest.CancelNeedsHold, tcctest.EmptyCancel,
		tcctest.HoldNeverExpires, tcctest.FreedUnasked, tcctest.InvariantBroken, tcctest.OutcomeDiffers, tcctest.NeverReached, tcctest.NeverEnds)
}

// byNumber are places whose Cancel does what it can with the number alone.
type byNumber struct{ places }

func (p byNumber) Cancel(ctx context.Context, guest string, number *int) error {
	if number == nil {
		return nil
	}
	return p.places.Cancel(ctx, guest, number)
}

// forgetful is what is said of them first.
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
