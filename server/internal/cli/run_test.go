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
	return Run(append(os.Args[:1:1], patiently(os.Args[1:])...))
}

// patiently adds a minute to the arguments of a command line that sets no timeout: it is enough
// to reach a server from a busy machine.
func patiently(args []string) []string {
	if slices.ContainsFunc(args, func(arg string) bool { return arg == "--timeout" || strings.HasPrefix(arg, "__complete") }) {
		return args
	}
	return append([]string{"--timeout", "1m"}, args...)
}

// RunWithin runs a command line in the test process, at a tenth of the cost of a new one.
// Its standard input is empty.
func RunWithin(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	null, err := os.Open(os.DevNull)
	testbed.OK(t, err)
	defer null.Close()
	var out, said bytes.Buffer
	a := newApp("interlock", &out, &said)
	a.in = null
	code = a.run(patiently(args))
	return code, out.String(), said.String()
}
