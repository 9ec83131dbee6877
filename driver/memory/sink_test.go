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

func TestNotifierSuite(t *testing.T) {
	drivertest.RunNotifier(t, drivertest.NotifierHarness{
		Bubble:  inBubble,
		Start:   func(*testing.T, bool) drivertest.NotifierBackend { return tower{&memory.Notifier{}} },
		Without: drivertest.Servers,
	})
}

// tower has the notifier of a process.
type tower struct{ notifier *memory.Notifier }

func (w tower) Open(*testing.T) (driver.Notifier, error) { return w.notifier, nil }

func (w tower) Beside(*testing.T) (driver.Notifier, error) { return w.notifier, nil }

func (w tower) Faults() drivertest.Faults { return nil }
