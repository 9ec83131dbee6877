package advise

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/interlock-dev/interlock/internal/testbed"
)

// root is the repository, relative to this package.
const root = "../../.."

var quoted = regexp.MustCompile("`([^`\n]+)`")

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, file))
	testbed.OK(t, err)
	return string(text)
}

// TestShown requires that each test in docs/explanation/transactions.md exists in the packages
// named before it: in each of them, if several come in a row.
func TestShown(t *testing.T) {
	const page = "docs/explanation/transactions.md"
	var packages []string
	named, another := 0, false
	for _, word := range quoted.FindAllStringSubmatch(read(t, page), -1) {
		name, inner, _ := strings.Cut(word[1], "/…/")
		switch info, err := os.Stat(filepath.Join(root, name)); {
		case strings.HasPrefix(name, "Test"):
			named++
			another = false
			if packages == nil {
				t.Errorf("%s: %s is in no package", page, word[1])
			}
			for _, dir := range packages {
				if all := tests(t, dir); !strings.Contains(all, "\nfunc "+name+"(") || !strings.Contains(all, `"`+inner) {
					t.Errorf("%s: there is no %s in %s", page, word[1], dir)
				}
			}
		case err == nil && info.IsDir():
			if !another {
				packages = nil
			}
			packages, another = append(packages, name), true
		default:
			another = false
		}
	}
	if named < 20 {
		t.Errorf("it names %d tests", named)
	}
}

// tests returns all tests of a package.
func tests(t *testing.T, dir string) (all string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, dir, "*_test.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%d tests in %s, %v", len(files), dir, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		testbed.OK(t, err)
		all += string(text)
	}
	return all
}
