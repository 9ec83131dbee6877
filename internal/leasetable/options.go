package leasetable

import (
	"fmt"
	"regexp"
	"time"
)

var namespacePattern = regexp.MustCompile(`^[a-z][a-z0-9_]{0,19}$`)

// CheckOptions rejects a TTL that is out of bounds, and an invalid namespace of table
// names.
func CheckOptions(ttl, least, most time.Duration, namespace string) error {
	switch {
	case ttl < least || ttl > most:
		return fmt.Errorf("a TTL of %v is invalid: it must be %v to %v", ttl, least, most)
	case !namespacePattern.MatchString(namespace):
		return fmt.Errorf("%q is no namespace: at most 20 lower-case letters, digits and underscores, a letter first", namespace)
	}
	return nil
}
