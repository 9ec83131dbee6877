package driver_test

import (
	"math"
	"testing"

	"github.com/interlock-dev/interlock/driver"
)

func TestNumbersHaveOneSpelling(t *testing.T) {
	for text, want := range map[string]int64{"0": 0, "-5": -5, "9223372036854775807": math.MaxInt64} {
		if n, err := driver.ParseInt(text); err != nil || n != want {
			t.Errorf("%q: %d, %v", text, n, err)
		}
	}
	for _, text := range []string{"", "+1", "01", "-0", " 1", "1 ", "1_0", "0x1", "1e3", "٣", "9223372036854775808"} {
		if n, err := driver.ParseInt(text); err == nil {
			t.Errorf("%q: %d", text, n)
		}
	}
	for _, n := range []int64{0, 7, math.MaxInt64} {
		text := driver.FormatPadded(n)
		if back, err := driver.ParsePadded(text); err != nil || back != n || len(text) != driver.PaddedLength {
			t.Errorf("%d: %q, %d, %v", n, text, back, err)
		}
	}
	for _, text := range []string{"", "7", "+000000000000000001", "-000000000000000000", "00000000000000000001", "000000000000000000x"} {
		if n, err := driver.ParsePadded(text); err == nil {
			t.Errorf("padded %q: %d", text, n)
		}
	}
}
