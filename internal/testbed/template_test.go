package testbed

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestATemplateIsMadeOnce checks that all test processes of a user share one template,
// or each creates its own if the cache is not writable.
func TestATemplateIsMadeOnce(t *testing.T) {
	for _, c := range []struct {
		name, cache, made string
	}{
		{"kept", t.TempDir(), "made\n"},
		{"no cache", os.DevNull, "made\nmade\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv("XDG_CACHE_HOME", c.cache)
			log := filepath.Join(t.TempDir(), "log")
			command := func(data, _ string) *exec.Cmd {
				return exec.Command("sh", "-c", `echo made >>"$0"; echo text >"$1/file"`, log, data)
			}
			for range 2 { // two processes
				var one template
				for range 2 { // two servers
					to := t.TempDir()
					if err := one.copyTo(to, "/bin/sh", nil, command); err != nil {
						t.Fatal(err)
					}
					if text, err := os.ReadFile(filepath.Join(to, "file")); string(text) != "text\n" {
						t.Errorf("the copy has %q, %v", text, err)
					}
				}
			}
			if text, _ := os.ReadFile(log); string(text) != c.made {
				t.Errorf("made %q, want %q", text, c.made)
			}
		})
	}
}
