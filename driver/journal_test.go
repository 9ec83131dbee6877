package driver_test

import (
	"strings"
	"testing"

	"github.com/interlock-dev/interlock/driver"
)

// TestShardsErrorAdvises what is possible: nothing can be opened with no shards.
func TestShardsErrorAdvises(t *testing.T) {
	for _, c := range []struct {
		err  driver.ShardsError
		says string
	}{
		{driver.ShardsError{Stored: 8, Opened: 16}, "open it with 8 (--shards 8)"},
		{driver.ShardsError{Stored: -5, Opened: 8}, "`interlock saga shards --set 5`"},
		{driver.ShardsError{Opened: 8}, "it was emptied or replaced; open it again"},
	} {
		if text := c.err.Error(); !strings.Contains(text, c.says) || strings.Contains(text, " 0 ") {
			t.Errorf("%+v: %s", c.err, text)
		}
	}
}
