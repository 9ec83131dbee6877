package interlock_test

import (
	"github.com/interlock-dev/interlock/internal/testbed"
	"os"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	markdownLink = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading      = regexp.MustCompile(`(?m)^#+ (.*)$`)
	codeBlock    = regexp.MustCompile("(?ms)^ *```.*?^ *```")
	inlineCode   = regexp.MustCompile("`[^`\n]*`")
	notInAnchor  = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// TestLinks: each relative link in a Markdown file leads to a file of the repository, and
// its fragment to a heading there.
func TestLinks(t *testing.T) {
	list, err := exec.Command("git", "ls-files", "*.md").Output()
	if err != nil {
		t.Skipf("not a git checkout: %v", err)
	}
	anchors := map[string][]string{}
	for file := range strings.FieldsSeq(string(list)) {
		text := prose(t, file)
		for _, m := range markdownLink.FindAllStringSubmatch(inlineCode.ReplaceAllString(text, ""), -1) {
			target, fragment, _ := strings.Cut(m[1], "#")
			if strings.Contains(target, ":") {
				continue // another site
			}
			if target = path.Join(path.Dir(file), target); strings.HasPrefix(m[1], "#") {
				target = file
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s: the link %s leads nowhere", file, m[1])
				continue
			}
			if fragment == "" {
				continue
			}
			if anchors[target] == nil {
				anchors[target] = anchorsOf(prose(t, target))
			}
			if !slices.Contains(anchors[target], fragment) {
				t.Errorf("%s: %s has no heading for the link %s", file, target, m[1])
			}
		}
	}
}

// prose is a file without its blocks of code.
func prose(t *testing.T, file string) string {
	text, err := os.ReadFile(file)
	testbed.OK(t, err)
	return codeBlock.ReplaceAllString(string(text), "")
}

// anchorsOf lists the anchors of a page's headings, as renderers of Markdown derive them.
func anchorsOf(text string) (anchors []string) {
	for _, m := range heading.FindAllStringSubmatch(text, -1) {
		plain := markdownLink.ReplaceAllString(m[1], "")
		anchor := strings.ReplaceAll(notInAnchor.ReplaceAllString(strings.ToLower(plain), ""), " ", "-")
		anchors = append(anchors, anchor)
	}
	return anchors
}
