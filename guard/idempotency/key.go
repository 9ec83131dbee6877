package idempotency

import (
	"errors"
	"fmt"
	"strings"

	"github.com/interlock-dev/interlock/driver"
)

// keyHeader is the header of draft-ietf-httpapi-idempotency-key-header-07.
const keyHeader = "Idempotency-Key"

var (
	errKeys     = errors.New("there is more than one")
	errKeyQuote = errors.New(`it is no quoted string of RFC 8941: one ends with ", and has \ only before " and \`)
	errKeyText  = errors.New("it must be printable ASCII; without quotes, it must have no space, comma, semicolon, quote or backslash")
)

// ParseKey parses the values of an Idempotency-Key header. The key is one quoted string of RFC
// 8941, whose parameters are ignored, or the same without quotes, as most clients send it. Both
// forms are the same key of 1 to 255 bytes. Without a value it returns the empty key.
func ParseKey(values []string) (key string, err error) {
	switch {
	case len(values) == 0:
		return "", nil
	case len(values) > 1:
		return "", errKeys
	}
	text := strings.Trim(values[0], " \t")
	if strings.HasPrefix(text, `"`) {
		key, err = unquote(text[1:])
	} else if key = text; strings.ContainsAny(key, " ,;\"\\") || !printable(key) {
		err = errKeyText
	}
	if err == nil && (key == "" || len(key) > driver.MaxIdempotencyName) {
		err = fmt.Errorf("it has 1 to %d bytes, not %d", driver.MaxIdempotencyName, len(key))
	}
	if err != nil {
		return "", err
	}
	return key, nil
}

// unquote parses the text after an opening quote.
func unquote(text string) (string, error) {
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '"':
			if rest := text[i+1:]; rest != "" && rest[0] != ';' {
				return "", errKeyQuote
			}
			return b.String(), nil
		case c == '\\':
			if i++; i == len(text) || text[i] != '"' && text[i] != '\\' {
				return "", errKeyQuote
			}
			b.WriteByte(text[i])
		case !printable(text[i : i+1]):
			return "", errKeyText
		default:
			b.WriteByte(c)
		}
	}
	return "", errKeyQuote
}

func printable(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' })
}
