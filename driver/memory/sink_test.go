package memory_test

import (
	"context"
	"slices"
	"testing"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/driver/memory"
)

func TestSinkSuite(t *testing.T) {
	drivertest.RunSink(t, drivertest.SinkHarness{
		Bubble:  inBubble,
		Start:   func(*testing.T, bool) drivertest.SinkBackend { return drain{&memory.Sink{}} },
		Without: drivertest.Servers | drivertest.LostReplies,
	})
}

// drain is one sink of a process.
type drain struct{ *memory.Sink }

func (d drain) Open(*testing.T) (drivertest.KeptSink, error) { return d, nil }

func (d drain) Beside(*testing.T) (drivertest.KeptSink, error) { return d, nil }

func (d drain) Faults() drivertest.Faults { return nil }

func (d drain) Kept(_ context.Context, topic string) ([]driver.Message, error) {
	return slices.DeleteFunc(d.Messages(), func(m driver.Message) bool { return m.Topic != topic }), nil
}

func TestBellSuite(t *testing.T) {
	drivertest.RunBell(t, drivertest.BellHarness{
		Bubble:  inBubble,
		Start:   func(*testing.T, bool) drivertest.BellBackend { return tower{&memory.Bell{}} },
		Without: drivertest.Servers,
	})
}

// tower has the bell of a process.
type tower struct{ bell *memory.Bell }

func (w tower) Open(*testing.T) (driver.Bell, error) { return w.bell, nil }

func (w tower) Beside(*testing.T) (driver.Bell, error) { return w.bell, nil }

func (w tower) Faults() drivertest.Faults { return nil }
