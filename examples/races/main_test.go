package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
)

// runs runs the program.
func runs(t *testing.T, args ...string) (code int, out, errs string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	code = run(t.Context(), args, &stdout, &stderr)
	return code, stdout.String(), stderr.String()
}

func TestCommandLine(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args string
		code int
		says string
	}{
		{"", 0, "lost-update"},
		{"-race", 2, "flag needs an argument"},
		{"-race unknown", 2, `no race "unknown"`},
		{"-race lost-update -variant healed", 2, `variant "healed"`},
		{"-race lost-update more", 2, "no race"},
		{"-race lost-update", 2, "-postgres postgres://"},
		{"-race dirty-read -redis redis://127.0.0.1:1", 2, "needs mariadb"},
		{"-race replay -redis redis://127.0.0.1:1", 1, "refused"},
		{"-race lost-update -postgres postgres://127.0.0.1:1/x", 1, "refused"},
	} {
		code, out, errs := runs(t, strings.Fields(c.args)...)
		if code != c.code || !strings.Contains(out+errs, c.says) || (code == 0) != (errs == "") {
			t.Errorf("races %s: exit code %d, %q, %q; want %d and %q", c.args, code, out, errs, c.code, c.says)
		}
	}
}

// TestShown runs each race from the command line, twice on the same server with the
// same seed, and checks the timeline and the verdict.
func TestShown(t *testing.T) {
	t.Parallel()
	for kind, start := range servers {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			url := start(t).URL()
			for _, r := range races {
				if r.system != kind {
					continue
				}
				for _, c := range []struct{ variant, verdict string }{{"broken", string(r.rule) + ": "}, {"fixed", "; no violation"}} {
					code, out, errs := runs(t, "-race", r.name, "-variant", c.variant, "-seed", "7", "-"+string(kind), url)
					if code != 0 || errs != "" || !strings.Contains(out, c.verdict) || !strings.Contains(out, "starts: ") {
						t.Errorf("%s, %s: exit code %d\n%s%s", r.name, c.variant, code, out, errs)
					}
					if first := fmt.Sprintf("%s, %s, seed 7\n", r.name, c.variant); !strings.HasPrefix(out, first) {
						t.Errorf("the first line of %q is not %q", out, first)
					}
					t.Log(out)
				}
			}
		})
	}
}
