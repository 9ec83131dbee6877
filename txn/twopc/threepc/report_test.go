package threepc

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write docs/three-phase.md from what the simulation does")

// TestReport: the page in docs is what the simulation says.
func TestReport(t *testing.T) {
	t.Parallel()
	r, err := Compare(nil)
	if err != nil {
		t.Fatal(err)
	}
	page := filepath.Join("..", "..", "..", "docs", "three-phase.md")
	title, rest, _ := strings.Cut(r.String(), "\n")
	text := title + "\n\n<!-- Written by: go test ./txn/twopc/threepc -run TestReport -update -->\n" + rest
	if *update {
		if err := os.WriteFile(page, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if string(have) != text {
		t.Errorf("%s is out of date: go test ./txn/twopc/threepc -run TestReport -update", page)
	}
}
