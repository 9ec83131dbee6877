package countermeasure

import (
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
)

// maxText is the longest text for people, in bytes.
const maxText = 4 << 10

// readable refuses a text for people that no database takes; it may be empty.
func readable(op, about, what, text string) error {
	if err := driver.CheckText(what, text, 0, maxText); err != nil {
		return failure.Bug(op, about, "%w", err)
	}
	return nil
}
