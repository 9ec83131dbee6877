package driver

import (
	"fmt"
	"strconv"
)

// PaddedLength is the number of digits of the largest int64, and the length of the result of
// [FormatPadded] in bytes.
const PaddedLength = 19

// ParseInt parses a decimal number as strconv.FormatInt formats it. It rejects a plus sign,
// leading zeros and a negative zero, because stores compare numbers as texts.
func ParseInt(text string) (int64, error) {
	return parse(text, func(n int64) string { return strconv.FormatInt(n, 10) })
}

// FormatPadded formats a number that is not negative as [PaddedLength] digits, with leading
// zeros. The texts sort in the order of the numbers.
func FormatPadded(n int64) string { return fmt.Sprintf("%0*d", PaddedLength, n) }

// ParsePadded parses the result of [FormatPadded] and rejects any other spelling of the number.
func ParsePadded(text string) (int64, error) { return parse(text, FormatPadded) }

func parse(text string, format func(int64) string) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err == nil && format(n) != text {
		err = fmt.Errorf("%q is not the canonical form of %d", text, n)
	}
	return n, err
}
