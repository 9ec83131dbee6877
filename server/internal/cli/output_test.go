package cli

import (
	"bytes"
	"context"
	"io"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/server/internal/backend"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/httpapi"
)

// Lines that several goroutines print at once stay whole: hooks of a coordinator and of renewals do.
func TestLinesStayWhole(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	a := newApp("interlock", io.Discard, &b)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 200 {
				a.say("saga %s waits", "世界")
			}
		})
	}
	all.Wait()
	if want := strings.Repeat("interlock: saga 世界 waits\n", 1600); b.String() != want {
		t.Errorf("%d bytes, want %d", b.Len(), len(want))
	}
}

// A store that is down makes no flood: of the lines of one hook a coordinator prints 20 in a second, and of
// each hook some.
func TestACoordinatorDoesNotFlood(t *testing.T) {
	var b bytes.Buffer
	a := newApp("interlock", io.Discard, &b)
	var o httpapi.Options
	a.tell(&o, false)
	for range 1000 {
		o.Sagas.Hooks.Dead(observe.SagaDead{Saga: "dead", Steps: []string{"a"}})
		o.Sagas.Hooks.Stuck(observe.SagaStuck{Saga: "stuck", Step: "a", Err: io.EOF})
		o.TCC.Hooks.Dead(observe.TCCDead{Transaction: "refused"})
		o.TwoPC.Hooks.Halted(observe.TwoPCHalted{Transaction: "halted", Participants: []string{"it's"}})
		o.TwoPC.Hooks.Heuristic(observe.TwoPCHeuristic{Transaction: "heuristic", Err: io.EOF})
		o.TwoPC.Hooks.Orphan(observe.TwoPCOrphan{Transaction: "orphan"})
	}
	if n := strings.Count(b.String(), "\n"); n > 6*100 {
		t.Errorf("%d lines", n)
	}
	for _, want := range []string{"interlock: saga dead waits for an operator: the undo of a failed for good; see interlock saga show dead\n",
		"interlock: saga stuck is past its pivot, and step a has failed 0 times: EOF\n", "transaction refused waits", "halted, not committed by it's: ",
		"interlock xa retry halted\n", "transaction heuristic waits", "transaction orphan has been in doubt"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in %.1000s", want, &b)
		}
	}
}

// The labels of a Mermaid graph have no quotes of their own, whatever the names are.
func TestMermaidLabels(t *testing.T) {
	t.Parallel()
	node := regexp.MustCompile(`^  n\d+[\[(]"[^"]*"[\])]$`)
	for l := range strings.Lines(string(mermaidOf([]waiterView{{Task: hostile, Awaits: `a"b`, Holds: []string{"c\x1b", "d\ne"}}}))) {
		if l = strings.TrimSuffix(l, "\n"); strings.Contains(l, `"`) && !node.MatchString(l) {
			t.Errorf("%s", l)
		}
	}
}

// Branches are shown in one order: those given up first.
func TestBranchesAreInOrder(t *testing.T) {
	t.Parallel()
	v := transactionView{Summary: coordinator.Summary{Dead: []coordinator.StepError{{Step: "first"}}, Failing: []coordinator.StepError{{Step: "second"}}}}
	for range 50 {
		if text := string(v.shown()); strings.Index(text, "first") > strings.Index(text, "second") {
			t.Fatal(text)
		}
	}
}

// A standard input that cannot be read is no fault of the backend.
func TestInputThatCannotBeRead(t *testing.T) {
	t.Parallel()
	directory, err := os.Open(t.TempDir())
	testbed.OK(t, err)
	defer directory.Close()
	for _, args := range []string{"queue edit orders 1 --payload - --reason x", "saga start order/42 order --input -"} {
		var said bytes.Buffer
		a := newApp("interlock", io.Discard, &said)
		a.in = directory
		if code := a.run(strings.Fields(args + " --backend postgres://127.0.0.1:1/shop")); code != exitFailed || !strings.Contains(said.String(), "standard input") {
			t.Errorf("%s: exit code %d, %s", args, code, &said)
		}
	}
}

// A change whose confirmation did not come may be done, and the error says so.
func TestUnconfirmedChanges(t *testing.T) {
	target, err := backend.Parse("postgres://127.0.0.1/shop")
	testbed.OK(t, err)
	for kind, want := range map[interlock.ErrorKind]bool{interlock.Uncertain: true, interlock.Definite: false} {
		for changes := range map[bool]bool{true: true, false: true} {
			a := &app{changes: changes, backend: "postgres://127.0.0.1/shop", timeout: time.Second}
			err := a.backendError(target, &interlock.Error{Op: "commit", Kind: kind, Err: context.DeadlineExceeded})
			if got := strings.Contains(err.Error(), "may be done"); codeOf(err) != exitUnreachable || got != (want && changes) {
				t.Errorf("%v, of a change %v: %v", kind, changes, err)
			}
		}
	}
}
