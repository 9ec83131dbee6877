package fence

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"strings"
	"unicode/utf8"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// Marks raises a resource's mark inside a SQL transaction. It is a [Table] or a
// [Column].
type Marks interface {
	// Enter refuses token with an [interlock.StaleTokenError] if a higher one
	// has entered resource, and otherwise raises the mark and keeps it locked
	// until the transaction ends: whoever enters next waits for that. source
	// tells people who entered. After any error the transaction must be rolled
	// back.
	Enter(ctx context.Context, db driver.SQL, resource string, token interlock.Token, source string) error
}

// tokenLimit is the highest plausible token at the database's own clock, in
// SQL: nothing above it is stored, since a mark that no later token can reach
// would lock everybody out.
var tokenLimit = fmt.Sprintf("(((extract(epoch from clock_timestamp()) * 1000000)::bigint - %d + %d) << %d | %d)",
	int64(interlock.EpochUnixMicro), interlock.MaxAhead.Microseconds(), bits.Len(interlock.MaxSub), interlock.MaxSub)

// admit checks what is known before the database is asked.
func admit(db driver.SQL, resource string, token interlock.Token) error {
	if !token.Valid() {
		return bug("enter", resource, "token %d was never issued", token)
	}
	return usable("enter", db, resource)
}

// usable checks that db and resource can be worked with.
func usable(op string, db driver.SQL, resource string) error {
	if d := db.Dialect(); d != driver.Postgres {
		return bug(op, resource, "SQL of %q is not spoken", string(d))
	}
	return named(op, resource)
}

func named(op, resource string) error {
	if resource == "" || len(resource) > driver.MaxName || !utf8.ValidString(resource) || strings.ContainsRune(resource, 0) {
		return &interlock.Error{Op: op, Name: resource, Kind: interlock.Bug,
			Err: fmt.Errorf("%w: a resource has 1 to %d bytes of UTF-8 without NUL", interlock.ErrName, driver.MaxName)}
	}
	return nil
}

func stale(resource string, seen, got interlock.Token) error {
	return &interlock.StaleTokenError{Resource: resource, Seen: seen, Got: got}
}

func implausible(op, resource string, token interlock.Token) error {
	return &interlock.Error{Op: op, Name: resource, Kind: interlock.Definite,
		Err: fmt.Errorf("%w: %d lies more than %v beyond the store's clock", interlock.ErrImplausibleToken, token, interlock.MaxAhead)}
}

func bug(op, resource, format string, args ...any) error {
	return &interlock.Error{Op: op, Name: resource, Kind: interlock.Bug, Err: fmt.Errorf(format, args...)}
}

// about tells a driver's error as one of op on resource.
func about(op, resource string, err error) error {
	var e *interlock.Error
	if !errors.As(err, &e) {
		return err
	}
	return &interlock.Error{Op: op, Driver: e.Driver, Name: resource, Kind: e.Kind, Err: e.Err}
}

// label makes a source storable: it is for people, and may be changed.
func label(source string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(source, "\uFFFD"), "\x00", "\uFFFD")
}
