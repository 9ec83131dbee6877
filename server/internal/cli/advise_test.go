package cli_test

import "testing"

func TestAdvise(t *testing.T) {
	t.Parallel()
	scripts(t, "advise", nil)
}

// TestAdviseAsks: on a terminal it asks, explains, goes back, and says how to be
// asked no more.
func TestAdviseAsks(t *testing.T) {
	t.Parallel()
	c := open(t, plainProgram(t), "advise", "nodes")
	c.sees("What must never happen?")
	c.types("why\r")
	c.sees("Everything else follows from this")
	c.types("1\r")
	c.sees("What may happen while the lock service is down")
	c.types("back\r")
	c.sees("What must never happen?")
	c.types("2\r")
	c.sees("What may happen while the lock service is down")
	c.types("go-on\r")
	c.sees("advise nodes --answer invariant=overwrite --answer down=go-on")
	c.sees("agree by consensus")
	c.ends(0)
}
