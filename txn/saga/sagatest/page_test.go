package sagatest_test

import (
	"context"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/interlock-dev/interlock/txn/saga"
	"github.com/interlock-dev/interlock/txn/saga/sagatest"
)

var block = regexp.MustCompile("(?ms)^```(\\w+)\n(.*?)^```\n")

// TestPage: the code of docs/how-to/testing-sagas.md is that of example_test.go, what it says
// Explore prints is what it prints, and it tells of each kind of finding.
func TestPage(t *testing.T) {
	page, source := read(t, "../../../docs/how-to/testing-sagas.md"), read(t, "example_test.go")
	page, _, both := strings.Cut(page, "\n## A TCC\n") // what is below is looked at by tcctest
	shown := map[string]int{}
	for _, b := range block.FindAllStringSubmatch(page, -1) {
		shown[b[1]]++
		switch b[1] {
		case "go":
			if !strings.Contains(source, "\n"+b[2]) {
				t.Errorf("this is not in example_test.go:\n%s", b[2])
			}
		case "text":
			if want := forgetful(t); b[2] != want {
				t.Errorf("it says\n%swant\n%s", b[2], want)
			}
		}
	}
	if shown["go"] < 2 || shown["text"] != 1 || !both {
		t.Errorf("blocks: %v, a part on TCC %v", shown, both)
	}
	for _, k := range []sagatest.Kind{sagatest.MissingUndo, sagatest.UndoNotIdempotent, sagatest.UndoNeedsOutput,
		sagatest.ActionNotIdempotent, sagatest.PivotNotRepeatable, sagatest.LateActionAccepted,
		sagatest.StepBehindPivotRefuses, sagatest.NeverEnds} {
		if !strings.Contains(page, "| "+string(k)+" |") {
			t.Errorf("it does not tell of %q", k)
		}
	}
}

// forgetful is what is said of a release that does what it can with the output alone.
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

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
