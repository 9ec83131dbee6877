package sqltable

import (
	"fmt"
	"strings"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// identifiers has the quote and the length limit of names. A database would cut or
// refuse longer ones, and two tables might become one.
var identifiers = map[driver.Dialect]struct {
	quote string
	max   int // bytes in PostgreSQL, characters in MariaDB: bytes are the stricter
}{
	driver.Postgres: {`"`, 63},
	driver.MariaDB:  {"`", 64},
}

// Identifier returns "name" or "schema.name" as a quoted identifier, with suffix
// added to the name. Case is significant. An invalid name is an error of kind Bug.
func Identifier(d driver.Dialect, name, suffix string) (string, error) {
	rule, ok := identifiers[d]
	if !ok {
		return "", misnamed(name, fmt.Sprintf("cannot be quoted: unsupported SQL dialect %q", string(d)))
	}
	parts := strings.Split(name, ".")
	parts[len(parts)-1] += suffix
	if len(parts) > 2 {
		return "", misnamed(name, "has more than one dot")
	}
	for i, p := range parts {
		switch {
		case p == "" || p == suffix:
			return "", misnamed(name, "is empty")
		case len(p) > rule.max:
			return "", misnamed(name, fmt.Sprintf("is longer than %d bytes", rule.max-len(suffix)))
		case strings.ContainsRune(p, 0):
			return "", misnamed(name, "contains NUL")
		}
		parts[i] = rule.quote + strings.ReplaceAll(p, rule.quote, rule.quote+rule.quote) + rule.quote
	}
	return strings.Join(parts, "."), nil
}

func misnamed(name, why string) error {
	return &interlock.Error{Op: "name table or column", Name: name, Kind: interlock.Bug,
		Err: fmt.Errorf("%w: it %s", interlock.ErrName, why)}
}
