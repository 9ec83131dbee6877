package hints

import "testing"

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
