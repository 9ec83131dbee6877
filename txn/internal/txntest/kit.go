package txntest

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"
)

// ReadFile returns the text of a file.
func ReadFile(t testing.TB, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	OK(t, err)
	return string(text)
}

var block = regexp.MustCompile("(?ms)^```(\\w+)\n(.*?)^```\n")

// Page checks a page about a kit for users' tests: its Go blocks are in example_test.go, its only
// text block is report, and its table has a row for each kind of finding.
func Page[K ~string](t *testing.T, page, report string, kinds ...K) {
	t.Helper()
	source, shown := ReadFile(t, "example_test.go"), map[string]int{}
	for _, b := range block.FindAllStringSubmatch(page, -1) {
		shown[b[1]]++
		switch b[1] {
		case "go":
			if !strings.Contains(source, "\n"+b[2]) {
				t.Errorf("this is not in example_test.go:\n%s", b[2])
			}
		case "text":
			if b[2] != report {
				t.Errorf("it says\n%swant\n%s", b[2], report)
			}
		}
	}
	if shown["go"] < 2 || shown["text"] != 1 {
		t.Errorf("blocks: %v", shown)
	}
	for _, k := range kinds {
		if !strings.Contains(page, "| "+string(k)+" |") {
			t.Errorf("it does not describe %q", k)
		}
	}
}

const chosenCase = "TXNTEST_CASE"

// FailsOutside requires that run fails its test, and prints texts, for each case. Each case runs the
// same test in its own process. White space does not count.
func FailsOutside(t *testing.T, run func(name string), cases map[string][]string) {
	t.Helper()
	if name := os.Getenv(chosenCase); name != "" {
		run(name)
		return
	}
	for name, texts := range cases {
		test := t.Name()
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^"+test+"$")
			cmd.Env = append(os.Environ(), chosenCase+"="+name)
			out, err := cmd.CombinedOutput()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || !strings.Contains(string(out), "--- FAIL: "+test) {
				t.Fatalf("%v\n%s", err, out)
			}
			printed := strings.Join(strings.Fields(string(out)), " ")
			for _, want := range texts {
				if !strings.Contains(printed, want) {
					t.Errorf("it does not print %q:\n%s", want, out)
				}
			}
		})
	}
}
