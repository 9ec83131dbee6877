package sagatest_test

import (
	"context"
	"strings"
	"testing"

	"github.com/interlock-dev/interlock/txn/internal/txntest"
	"github.com/interlock-dev/interlock/txn/saga"
	"github.com/interlock-dev/interlock/txn/saga/sagatest"
)

// TestPage: docs/how-to/testing-sagas.md has the code of example_test.go and the output of
// Explore, and describes each kind of finding.
func TestPage(t *testing.T) {
	page, _, both := strings.Cut(txntest.ReadFile(t, "../../../docs/how-to/testing-sagas.md"), "\n## A TCC\n") // tcctest checks the rest
	if !both {
		t.Error("the part on TCC is missing")
	}
	txntest.Page(t, page, forgetful(t), sagatest.MissingUndo, sagatest.UndoNotIdempotent, sagatest.UndoNeedsOutput,
		sagatest.ActionNotIdempotent, sagatest.PivotNotRepeatable, sagatest.LateActionAccepted, sagatest.StepAfterPivotRefuses, sagatest.NeverEnds)
}

// forgetful returns the finding of a release that needs the output.
func forgetful(t *testing.T) string {
	found, err := sagatest.Findings(t, func() sagatest.Scene[order] {
		s, w := scene(), &sagatest.World{}
		w.Set("seats", "10")
		h := hotel{w}
		hold := saga.Step("hold", h.hold).Undo("release", func(ctx context.Context, o order, out *seat) error {
			if out == nil {
				return nil
			}
			return h.release(ctx, o, out)
		})
		s.Saga, s.Snapshot = saga.Define("booking", hold, saga.Step("charge", h.charge).Pivot()), w.Snapshot
		return s
	})
	if err != nil || len(found) == 0 {
		t.Fatal(found, err)
	}
	return found[0].String() + "\n"
}
