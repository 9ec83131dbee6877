package cli

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/interlock-dev/interlock/internal/testbed"
)

func init() { quietLibraries() } // before any test uses them: it is not safe later

// RunAlone runs the command line of this process. Its default address is one at which nothing
// listens, whatever runs on the machine.
func RunAlone() int {
	defaultListen = "127.0.0.1:1"
	return Run(os.Args)
}

// RunWithin runs a command line in the test process, at a tenth of the cost of a new one.
// Its standard input is empty. A minute is enough to reach a server from a busy machine.
func RunWithin(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	null, err := os.Open(os.DevNull)
	testbed.OK(t, err)
	defer null.Close()
	var out, said bytes.Buffer
	a := newApp("interlock", &out, &said)
	a.in = null
	if !slices.Contains(args, "--timeout") && !slices.ContainsFunc(args, func(arg string) bool { return strings.HasPrefix(arg, "__complete") }) {
		args = append([]string{"--timeout", "1m"}, args...)
	}
	code = a.run(args)
	return code, out.String(), said.String()
}
