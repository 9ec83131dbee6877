package cli

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/interlock-dev/interlock/internal/testbed"
)

// A replaced report can be read by those who could read it before, and a new one by those who can read
// other new files.
func TestAReplacedFileKeepsItsPermissions(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, other := filepath.Join(dir, "report"), filepath.Join(dir, "other")
	testbed.OK(t, os.WriteFile(other, nil, 0o666))
	mode := func(file string) os.FileMode {
		info, err := os.Stat(file)
		testbed.OK(t, err)
		return info.Mode()
	}
	testbed.OK(t, writeAtomically(file, 1))
	if got, want := mode(file), mode(other); got != want {
		t.Errorf("a new file has the permissions %v, want %v", got, want)
	}
	testbed.OK(t, os.Chmod(file, 0o640))
	testbed.OK(t, writeAtomically(file, 2))
	if got := mode(file); got != 0o640 {
		t.Errorf("a replaced file has the permissions %v", got)
	}
}
