package cli

import (
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/server/internal/backend"
)

var (
	consoleBlock = regexp.MustCompile("(?ms)^```console\n.*?^```$") // TestTheExamplesOfTheDocs runs these
	commandLine  = regexp.MustCompile("(?m)(?:^ {0,4}|[`(]|-- )interlock((?: +(?:'[^']*'|\"[^\"]*\"|[^\\s`'\"#;&><)]+))+)")
	flagInProse  = regexp.MustCompile("`--([a-z-]+)")
	backendURL   = regexp.MustCompile("\\b(?:etcd|rediss?|postgres|mysql|mariadb|zookeeper|consul|kube)://[^\\s'\"`)|,]*\\?[^\\s'\"`)|,]*")
	words        = regexp.MustCompile(`'[^']*'|"[^"]*"|\S+`)

	foreignFlags = []string{"auto-compaction-retention", "quota-backend-bytes", "discard", "dupe-window"} // of etcd and nats
)

// TestPages: the command lines, flags and URLs of the pages are known to the commands.
func TestPages(t *testing.T) {
	const repository = "../../.."
	root := newApp("interlock", io.Discard, io.Discard).root()
	root.InitDefaultHelpCmd()
	pages, err := filepath.Glob(repository + "/docs/*/*.md")
	testbed.OK(t, err)
	lines, flags, urls := 0, 0, 0
	for _, path := range append(pages, repository+"/README.md") {
		data, err := os.ReadFile(path)
		testbed.OK(t, err)
		text := consoleBlock.ReplaceAllString(string(data), "")
		for _, m := range commandLine.FindAllStringSubmatch(text, -1) {
			lines++
			if problem := problemOf(root, words.FindAllString(m[1], -1)); problem != "" {
				t.Errorf("%s: interlock%s: %s", path, m[1], problem)
			}
		}
		for _, m := range flagInProse.FindAllStringSubmatch(text, -1) {
			flags++
			if !hasFlag(root, m[1]) && !slices.Contains(foreignFlags, m[1]) {
				t.Errorf("%s: no command has the flag --%s", path, m[1])
			}
		}
		for _, url := range backendURL.FindAllString(text, -1) {
			urls++
			if _, err := backend.Parse(url); err != nil {
				t.Errorf("%s: %s: %v", path, url, err)
			}
		}
	}
	if lines < 100 || flags < 100 || urls < 10 {
		t.Errorf("only %d command lines, %d flags and %d URLs found", lines, flags, urls)
	}
}

// problemOf returns what is wrong with a command line: an unknown command or flag.
func problemOf(c *cobra.Command, line []string) string {
	for len(line) > 0 && line[0] != "--" && line[0] != "|" {
		word := strings.Trim(line[0], "[]…\\,.:")
		line = line[1:]
		switch {
		case strings.HasPrefix(word, "-"):
			name, _, hasValue := strings.Cut(strings.TrimLeft(word, "-"), "=")
			name, _, _ = strings.Cut(name, "|") // alternatives, with a backslash in tables
			c.InitDefaultHelpFlag()
			f := c.Flag(strings.TrimSuffix(name, "\\"))
			if len(name) == 1 {
				f = c.Root().PersistentFlags().ShorthandLookup(name)
			}
			if f == nil {
				return "no flag " + word
			}
			if f.NoOptDefVal == "" && !hasValue && len(line) > 0 {
				line = line[1:]
			}
		case c.HasSubCommands() && word != "":
			sub, _, err := c.Find([]string{word})
			if found := err == nil && sub != c; !found && !strings.Contains(c.Use, " ") {
				return "no command " + word
			} else if !found {
				return "" // an argument
			}
			c = sub
		}
	}
	return ""
}

// hasFlag reports whether a command, or one below it, has a flag.
func hasFlag(c *cobra.Command, name string) bool {
	return c.Flag(name) != nil || slices.ContainsFunc(c.Commands(), func(sub *cobra.Command) bool { return hasFlag(sub, name) })
}
