package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestWrite: each command and each event has its page or its heading.
func TestWrite(t *testing.T) {
	dir := t.TempDir()
	if err := write("../../../observe", dir); err != nil {
		t.Fatal(err)
	}
	for page, want := range map[string]string{
		"commands/interlock-locks-show.md": "## Flags of every command",
		"commands/interlock-guard.md":      "- [interlock guard enter](interlock-guard-enter.md): ",
		"events.md":                        "\n## LockEnded\n",
	} {
		text, err := os.ReadFile(filepath.Join(dir, page))
		if err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s has no %q: %v", page, want, err)
		}
	}
}
