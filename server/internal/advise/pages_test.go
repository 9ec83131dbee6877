package advise

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// root is the repository, as seen from here.
const root = "../../.."

var (
	links  = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	quoted = regexp.MustCompile("`([^`\n]+)`")
	titles = regexp.MustCompile(`(?m)^#+ (.+)$`)
	signs  = regexp.MustCompile(`[^\pL\pN_\- ]`)
)

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestLinks: what pages for users point at is there, headings too.
func TestLinks(t *testing.T) {
	pages, err := filepath.Glob(root + "/docs/*.md")
	if err != nil || len(pages) < 10 {
		t.Fatalf("%d pages, %v", len(pages), err)
	}
	for _, page := range append(pages, root+"/README.md", root+"/examples/README.md") {
		page, _ := filepath.Rel(root, page)
		for _, link := range links.FindAllStringSubmatch(read(t, page), -1) {
			if strings.Contains(link[1], "://") {
				continue
			}
			file, anchor, _ := strings.Cut(link[1], "#")
			target := page
			if file != "" {
				target = filepath.Join(filepath.Dir(page), file)
			}
			if _, err := os.Stat(filepath.Join(root, target)); err != nil {
				t.Errorf("%s: %s: %v", page, link[1], err)
			} else if anchor != "" && !slices.Contains(anchors(read(t, target)), anchor) {
				t.Errorf("%s: %s has no heading %q", page, target, anchor)
			}
		}
	}
}

// anchors are those of a page's headings.
func anchors(page string) (all []string) {
	for _, title := range titles.FindAllStringSubmatch(page, -1) {
		all = append(all, strings.ReplaceAll(signs.ReplaceAllString(strings.ToLower(title[1]), ""), " ", "-"))
	}
	return all
}

// TestShown: the tests that docs/transactions.md names are in the packages that it
// names before them, in each if those come in a row.
func TestShown(t *testing.T) {
	const page = "docs/transactions.md"
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

// tests is all of a package's tests.
func tests(t *testing.T, dir string) (all string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, dir, "*_test.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%d tests in %s, %v", len(files), dir, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all += string(text)
	}
	return all
}
