package driver_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// TestNotifierIsBounded: names that cannot be sent, or not any more, take a bounded memory.
func TestNotifierIsBounded(t *testing.T) {
	n := driver.NewSharedNotifier(driver.NotifierTransport{Send: func(context.Context, string) error { return errors.New("no server") }})
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	for _, state := range []string{"open", "closed"} {
		for i := range 50_000 {
			n.Notify(fmt.Sprintf("%s%0200d", state, i))
		}
		if grown := heap() - before; grown > 4<<20 {
			t.Errorf("%s: the heap has grown by %d bytes", state, grown)
		}
		testbed.OK(t, n.Close(t.Context()))
	}
}
