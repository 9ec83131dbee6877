package driver_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"testing"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

func received(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func TestMailboxCollectsNames(t *testing.T) {
	m := driver.NewMailbox("x/", driver.MostNames)
	for _, name := range []string{"x/b", "y/a", "x/a", "x/b"} {
		m.Add(name)
	}
	names, missed := m.Take()
	if !slices.Equal(names, []string{"x/a", "x/b"}) || missed || !received(m.Woken()) {
		t.Errorf("%q, missed %v", names, missed)
	}
	for what, miss := range map[string]func(){"Miss": m.Miss, "any name": func() { m.Add("") }} {
		miss()
		if names, missed = m.Take(); len(names) != 0 || !missed || !received(m.Woken()) {
			t.Errorf("after %s: %q, missed %v", what, names, missed)
		}
	}
	if names, missed = m.Take(); len(names) != 0 || missed || received(m.Woken()) {
		t.Errorf("after Take: %q, missed %v", names, missed)
	}
}

func TestMailboxOfASlowReaderIsBounded(t *testing.T) {
	m := driver.NewMailbox("", driver.MostNames)
	for i := range 10 * driver.MostNames {
		m.Add(fmt.Sprint(i))
	}
	if names, missed := m.Take(); len(names) > driver.MostNames || !missed {
		t.Errorf("%d names, missed %v", len(names), missed)
	}
}

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
