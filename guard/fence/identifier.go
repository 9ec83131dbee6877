package fence

import (
	"fmt"
	"strings"

	"github.com/interlock-dev/interlock"
)

// maxIdentifier is the longest identifier of PostgreSQL, in bytes; it would cut
// longer ones, and two tables might become one.
const maxIdentifier = 63

// quoted is "name" or "schema.name" as a quoted SQL identifier, with suffix
// added to the name. Names are taken as they are written, case included.
func quoted(name, suffix string) (string, error) {
	parts := strings.Split(name, ".")
	parts[len(parts)-1] += suffix
	if len(parts) > 2 {
		return "", misnamed(name, "has more than one dot")
	}
	for i, p := range parts {
		switch {
		case p == "" || p == suffix:
			return "", misnamed(name, "is empty")
		case len(p) > maxIdentifier:
			return "", misnamed(name, fmt.Sprintf("is longer than %d bytes", maxIdentifier-len(suffix)))
		case strings.ContainsRune(p, 0):
			return "", misnamed(name, "contains NUL")
		}
		parts[i] = `"` + strings.ReplaceAll(p, `"`, `""`) + `"`
	}
	return strings.Join(parts, "."), nil
}

func misnamed(name, why string) error {
	return &interlock.Error{Op: "name table or column", Name: name, Kind: interlock.Bug, Err: fmt.Errorf("%w: it %s", interlock.ErrName, why)}
}
