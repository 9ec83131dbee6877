package driver

import (
	"fmt"
	"strconv"
)

// PaddedLength is the number of digits of the largest int64, and the length of what
// [FormatPadded] writes, in bytes.
const PaddedLength = 19

// ParseInt reads a decimal number in the one spelling that strconv.FormatInt writes. A plus
// sign, leading zeros and a negative zero are errors, because stores compare numbers as texts.
func ParseInt(text string) (int64, error) {
	return parse(text, func(n int64) string { return strconv.FormatInt(n, 10) })
}

// FormatPadded writes a number from 0 on in [PaddedLength] digits, with leading zeros. The
// texts have the order of the numbers.
func FormatPadded(n int64) string { return fmt.Sprintf("%0*d", PaddedLength, n) }

// ParsePadded reads what [FormatPadded] writes, and no other spelling of the number.
func ParsePadded(text string) (int64, error) { return parse(text, FormatPadded) }

func parse(text string, format func(int64) string) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err == nil && format(n) != text {
		err = fmt.Errorf("%q is not the canonical form of %d", text, n)
	}
	return n, err
}
