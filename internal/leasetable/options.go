package leasetable

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/failure"
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

// CheckOpening returns the error of an opening with invalid options, without what it needs, or
// after ctx.
func CheckOpening(ctx context.Context, d failure.Driver, invalid error, given bool, need string) error {
	switch {
	case invalid != nil:
		return d.New("open", "", interlock.Bug, invalid)
	case !given:
		return d.New("open", "", interlock.Bug, errors.New(need))
	case ctx.Err() != nil:
		return d.Unsent(ctx, "open", "")
	}
	return nil
}
