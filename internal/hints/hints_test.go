package hints

import (
	"fmt"
	"slices"
	"testing"
)

func received(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func TestWaitersWakesThoseOfTheName(t *testing.T) {
	var w Waiters
	a, leaveA := w.Enter("a")
	again, leaveAgain := w.Enter("a")
	b, leaveB := w.Enter("b")
	w.Wake("a")
	w.Wake("a") // hints become one
	if !received(a) || !received(again) || received(a) || received(b) {
		t.Error("a wake must reach each waiter of its name once, and no other")
	}
	w.Wake("")
	if !received(a) || !received(b) {
		t.Error("a wake without a name must reach everyone")
	}
	leaveA()
	w.Wake("a")
	if received(a) {
		t.Error("a waiter that left was woken")
	}
	leaveAgain()
	leaveB()
	if len(w.waiting) != 0 {
		t.Errorf("%d names are left", len(w.waiting))
	}
}

func TestMailboxCollectsNames(t *testing.T) {
	m := NewMailbox("x/", MostNames)
	for _, name := range []string{"x/b", "y/a", "x/a", "x/b"} {
		m.Add(name)
	}
	names, missed := m.Take()
	if !slices.Equal(names, []string{"x/a", "x/b"}) || missed || !received(m.Woken()) {
		t.Errorf("%q, missed %v", names, missed)
	}
	m.Miss()
	if names, missed = m.Take(); len(names) != 0 || !missed || !received(m.Woken()) {
		t.Errorf("after Miss: %q, missed %v", names, missed)
	}
	if names, missed = m.Take(); len(names) != 0 || missed || received(m.Woken()) {
		t.Errorf("after Take: %q, missed %v", names, missed)
	}
}

func TestMailboxOfASlowReaderIsBounded(t *testing.T) {
	m := NewMailbox("", MostNames)
	for i := range 10 * MostNames {
		m.Add(fmt.Sprint(i))
	}
	if names, missed := m.Take(); len(names) > MostNames || !missed {
		t.Errorf("%d names, missed %v", len(names), missed)
	}
}
