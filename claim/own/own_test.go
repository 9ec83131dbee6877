package own_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/own"
	"github.com/interlock-dev/interlock/claim/own/owntest"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func inBubble(t *testing.T, test func(*testing.T)) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))) // virtual time begins before counters do
		test(t)
	})
}

// TestMemory runs the suite in virtual time.
func TestMemory(t *testing.T) {
	owntest.Run(t, inBubble, func(t *testing.T) owntest.World {
		space := memory.NewSpace()
		fence := space.Fence()
		return owntest.World{
			Open: func(t *testing.T) (driver.Fenced, driver.Values) {
				d := space.Open(&memory.Options{TTL: 6 * time.Second})
				t.Cleanup(func() { _ = d.Close(context.Background()) })
				return d, space.Values()
			},
			Crash: func(t *testing.T, d driver.Fenced) {
				if err := d.Close(t.Context()); err != nil {
					t.Error(err)
				}
			},
			Enter: func(ctx context.Context, resource string, token interlock.Token, source string) error {
				return fence.Enter(ctx, driver.Raise{Resource: resource, Token: token, Source: source})
			},
			TTL:  6 * time.Second,
			Move: 50 * time.Millisecond,
		}
	})
}

// blind is a driver that shows nothing.
type blind struct{ driver.Fenced }

func TestADriverThatShowsNothingIsRefused(t *testing.T) {
	d := memory.NewSpace().Open(nil)
	defer d.Close(t.Context())
	_, err := own.Join(t.Context(), blind{d}, memory.NewSpace().Values(), "g", own.Layout{Partitions: 1}, nil)
	if unmet, ok := err.(*interlock.UnmetError); !ok || len(unmet.Unmet) != 2 {
		t.Errorf("got %v", err)
	}
}
