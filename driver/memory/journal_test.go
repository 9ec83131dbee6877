package memory_test

import (
	"testing"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/driver/memory"
)

func TestJournal(t *testing.T) {
	drivertest.RunJournal(t, drivertest.JournalHarness{
		Start:   func(*testing.T, bool) drivertest.JournalBackend { return book{memory.NewJournal()} },
		Without: drivertest.Servers | drivertest.LostReplies,
	})
}

// book is one journal, opened again and again.
type book struct{ journal *memory.Journal }

func (b book) Open(*testing.T) (driver.Journal, error) { return b.journal, nil }

func (b book) Beside(*testing.T) (driver.Journal, error) { return b.journal, nil }

func (b book) Faults() drivertest.Faults { return nil }
