package embedded

import (
	"testing"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/driver/etcd"
	"github.com/interlock-dev/interlock/internal/testbed"
)

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
