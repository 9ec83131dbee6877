package fence

import (
	"context"
	"fmt"
	"strings"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
)

// Marks raises a resource's mark inside a SQL transaction. [Table] and [Column] implement it.
type Marks interface {
	// Enter returns an [interlock.StaleTokenError] if a higher token has entered resource.
	// Otherwise it raises the mark and keeps it locked until the transaction ends; the next
	// Enter waits for that. source names the holder, for people. After any error the
	// transaction must be rolled back.
	Enter(ctx context.Context, db driver.SQL, resource string, token interlock.Token, source string) error
}

// validateToken returns an error for a token that no lock issues.
func validateToken(resource string, token interlock.Token) error {
	if !token.Valid() {
		return failure.Bug("enter", resource, "%d is not a token that a lock issues", token)
	}
	return nil
}

func validateResource(op, resource string) error {
	return driver.CheckName(op, "a resource", resource, driver.MaxName)
}

func stale(resource string, seen, got interlock.Token) error {
	return &interlock.StaleTokenError{Resource: resource, Seen: seen, Got: got}
}

func implausible(op, resource string, token interlock.Token) error {
	return &interlock.Error{Op: op, Name: resource, Kind: interlock.Definite,
		Err: fmt.Errorf("%w: %d is more than %v ahead of the store's clock", interlock.ErrImplausibleToken, token, interlock.MaxAhead)}
}

// label makes a source storable; since it is for people, label may change it.
func label(source string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(source, "\uFFFD"), "\x00", "\uFFFD")
}
