package tcctest_test

import (
	"context"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/interlock-dev/interlock/txn/tcc"
	"github.com/interlock-dev/interlock/txn/tcc/tcctest"
)

var block = regexp.MustCompile("(?ms)^```(\\w+)\n(.*?)^```\n")

// TestPage: the code on TCC in docs/how-to/testing-sagas.md is that of example_test.go, what it
// says Explore prints is what it prints, and it tells of each kind of finding.
func TestPage(t *testing.T) {
	_, page, _ := strings.Cut(read(t, "../../../docs/how-to/testing-sagas.md"), "\n## A TCC\n")
	source, shown := read(t, "example_test.go"), map[string]int{}
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
	if shown["go"] < 2 || shown["text"] != 1 {
		t.Errorf("blocks: %v", shown)
	}
	for _, k := range []tcctest.Kind{tcctest.TryNotIdempotent, tcctest.TryVisible, tcctest.LateTryAccepted, tcctest.ConfirmNotIdempotent,
		tcctest.ConfirmRefuses, tcctest.CancelIncomplete, tcctest.CancelNotIdempotent, tcctest.CancelNeedsHold, tcctest.EmptyCancel,
		tcctest.HoldNeverExpires, tcctest.FreedUnasked, tcctest.InvariantBroken, tcctest.OutcomeDiffers, tcctest.NeverReached, tcctest.NeverEnds} {
		if !strings.Contains(page, "| "+string(k)+" |") {
			t.Errorf("it does not tell of %q", k)
		}
	}
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

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
