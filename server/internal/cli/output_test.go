package cli

import (
	"bytes"
	"io"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/txn/coordinator"
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
