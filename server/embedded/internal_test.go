package embedded

import (
	"errors"
	"fmt"
	"syscall"
	"testing"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/driver/etcd"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// A free port may be taken by another program before the node listens on it.
func TestPortTakenMeanwhile(t *testing.T) {
	taken := &AddressError{Listen: "it", Err: fmt.Errorf("listen: %w", syscall.EADDRINUSE)}
	other := errors.New("other")
	for name, c := range map[string]struct {
		listen string
		errs   []error // of each start
		want   error
	}{
		"free":          {"127.0.0.1:0", []error{nil}, nil},
		"taken twice":   {"127.0.0.1:0", []error{taken, taken, nil}, nil},
		"always taken":  {"127.0.0.1:0", []error{taken, taken, taken, taken, taken}, taken},
		"other failure": {"127.0.0.1:0", []error{other}, other},
		"chosen port":   {"127.0.0.1:7", []error{taken}, taken},
	} {
		t.Run(name, func(t *testing.T) {
			starts := 0
			err := onPort(c.listen, func(listen string) error {
				if listen == "127.0.0.1:0" {
					t.Error("the port was not replaced")
				}
				starts++
				return c.errs[starts-1]
			})
			if !errors.Is(err, c.want) || starts != len(c.errs) {
				t.Errorf("%v after %d starts", err, starts)
			}
		})
	}
}

// TestJournal runs the suite of the journal on the embedded node. The tests on a
// separate server inject faults.
func TestJournal(t *testing.T) {
	t.Parallel()
	drivertest.RunJournal(t, drivertest.JournalHarness{
		Start: func(t *testing.T, _ bool) drivertest.JournalBackend {
			s, err := Start(t.Context(), Options{DataDir: t.TempDir(), Listen: "127.0.0.1:0"})
			testbed.OK(t, err)
			t.Cleanup(s.Close)
			return node{s}
		},
		Without: drivertest.Servers | drivertest.LostReplies,
	})
}

type node struct{ *Server }

func (n node) Open(*testing.T) (driver.Journal, error) { return etcd.NewJournal(n.Client(), ""), nil }

func (n node) Beside(t *testing.T) (driver.Journal, error) { return n.Open(t) }

func (n node) Faults() drivertest.Faults { return nil }
