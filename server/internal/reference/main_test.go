package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestWrite: each command, event and error has its page, heading or line.
func TestWrite(t *testing.T) {
	dir := t.TempDir()
	if err := write("../../..", dir); err != nil {
		t.Fatal(err)
	}
	for page, want := range map[string]string{
		"commands/interlock-locks-show.md": "## Flags of every command",
		"commands/interlock-guard.md":      "- [interlock guard enter](interlock-guard-enter.md): ",
		"events.md":                        "\n## LockEnded\n",
		"errors.md":                        "\n- `saga.ErrCompensated`: ",
	} {
		text, err := os.ReadFile(filepath.Join(dir, page))
		if err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s has no %q: %v", page, want, err)
		}
	}
}
