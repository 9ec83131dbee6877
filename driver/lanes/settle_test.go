package lanes

import (
	"context"
	"errors"
	"testing"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// TestDeadLetterOfEndedAssignment: a partition that is given up while a handler runs commits nothing of
// its message unless the dead letter is written.
func TestDeadLetterOfEndedAssignment(t *testing.T) {
	c, a := newBare()
	written := 0
	c.DeadLetters = func(_ context.Context, dead []driver.Settlement) []error {
		written += len(dead)
		return make([]error, len(dead))
	}
	c.Update(func() { c.Arrive(a, 0, []byte("k"), 1) })
	all, err := c.Receive(t.Context(), driver.QueueLimit{Messages: 1, Bytes: 1})
	if err != nil {
		t.Fatal(err)
	}
	a.End(interlock.ErrLost) // as GiveUp does, before its last commit
	answer := c.Settle(t.Context(), []driver.Settlement{{Received: all[0], Outcome: driver.Dead}})[0]
	if done := a.Offsets.Prefix() == 1; done && written == 0 || !done && !errors.Is(answer, interlock.ErrLost) {
		t.Errorf("%d dead letters are written, the offset to commit is %d, and the answer is %v", written, a.Offsets.Prefix(), answer)
	}
}
