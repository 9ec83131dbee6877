package countermeasure

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
)

// SemanticLock flags resources for a saga, or another long transaction, from one step to a later
// one. A flag is a committed row, not a lock of the database: no transaction waits for it, and
// only code that checks it is bound by it. Readers that must not see what may yet be undone check
// it, too, by [SemanticLock.Vacant].
//
// A flag does not end by itself. After its time it shows as expired, and remains until its owner
// releases it or another transaction takes it over. A takeover needs either proof that the owner
// has ended ([Intent.Ended]), or a statement why that does not matter ([Intent.Risk]). The new
// owner finds the data as the former one left it. A saga that has ended has released its flags,
// unless its undo failed for good.
//
// The zero value is ready once [SemanticLock.Create] has created the table. It is safe for
// concurrent use, with one transaction for each call.
type SemanticLock struct {
	// Name is the table, or schema.table; empty means "interlock_semantic_lock". It is
	// trusted: never take it from a request.
	Name string
}

// DefaultTTL is the default of Intent.TTL.
const DefaultTTL = time.Hour

// maxTTL keeps expiry times within the range of the databases.
const maxTTL = 100 * 365 * 24 * time.Hour

// An Intent describes the flag to set.
type Intent struct {
	Resource string // what is flagged: 1 to driver.MaxName bytes
	Owner    string // the transaction's id, 1 to driver.MaxTransaction bytes: branch.Call.Transaction
	Purpose  string // for operators
	// TTL is the time after which the flag counts as expired, by the database's clock; 0 means
	// [DefaultTTL]. Below 0, or above a hundred years, it is a Bug.
	TTL time.Duration
	// Ended reports whether the transaction that owns the flag has ended; then the flag is
	// taken over, whatever its age. An unknown id has ended only if ids are kept for longer
	// than flags. Ended is called while the flag's row is locked, so it must not wait for
	// that transaction, nor use this one. Its error is returned unchanged. Nil permits no
	// such takeover.
	Ended func(ctx context.Context, owner string) (bool, error)
	// Risk, if it is not empty, permits the takeover of an expired flag although its owner may
	// still work. It is the reason why that does no harm, and is stored with the flag.
	Risk string
}

func (w Intent) check(op string) error {
	if err := driver.CheckName(op, "a resource", w.Resource, driver.MaxName); err != nil {
		return err
	}
	if err := driver.CheckName(op, "an owner", w.Owner, driver.MaxTransaction); err != nil {
		return err
	}
	if w.TTL < 0 || w.TTL > maxTTL {
		return failure.Bug(op, w.Resource, "a TTL of %v is not between 0 and %v", w.TTL, maxTTL)
	}
	if err := checkText(op, w.Resource, "a purpose", w.Purpose); err != nil {
		return err
	}
	return checkText(op, w.Resource, "a risk", w.Risk)
}

// Create creates the table, unless it exists. Several processes may call it at once. It takes effect when
// the transaction commits; on MariaDB it takes effect at once, and commits the statements before it.
func (l SemanticLock) Create(ctx context.Context, db driver.SQL) error {
	f, err := l.open("create table of flags", "", db)
	if err != nil {
		return err
	}
	return f.create(ctx)
}

// Acquire flags a free resource. If the owner has flagged it already, the flag is prolonged,
// never shortened, and keeps its Since. If another owner has flagged it the error is a
// [HeldError], unless w permits a takeover.
//
// It waits for transactions that are changing the flag, not for the flag. After a HeldError the
// flag's row stays locked until the transaction ends: end it soon, or the owner cannot release
// the flag. [Wait] does that and retries. It costs one statement on PostgreSQL, two if rejected;
// up to three on MariaDB, one if rejected.
func (l SemanticLock) Acquire(ctx context.Context, db driver.SQL, w Intent) error {
	const op = "flag resource"
	if err := w.check(op); err != nil {
		return err
	}
	w.TTL = cmp.Or(w.TTL, DefaultTTL)
	f, err := l.flags(op, db, w.Resource)
	if err != nil {
		return err
	}
	held, err := f.take(ctx, w, "")
	if err != nil || held == nil {
		return err
	}
	if w.Ended != nil {
		ended, err := w.Ended(ctx, held.Owner)
		if err != nil {
			return err
		}
		if ended {
			held, err = f.take(ctx, w, held.Owner)
			if err != nil || held == nil {
				return err
			}
		}
	}
	return &HeldError{Flag: *held}
}

// Release removes the flag of owner. It returns false, and does nothing, if the flag belongs to
// another owner or does not exist: it was released or taken over. Repeating it is harmless. Call
// it in the transaction of the saga's last work on the resource, or of the undo of its first.
func (l SemanticLock) Release(ctx context.Context, db driver.SQL, resource, owner string) (was bool, err error) {
	const op = "release flag"
	f, err := l.of(op, db, resource, owner)
	if err != nil {
		return false, err
	}
	return f.release(ctx, owner)
}

// Check returns nil if owner has the flag, expired or not, and keeps that so until the
// transaction ends. Later steps call it before they read. After a takeover the error is a
// [NotOwnerError], and the saga must not touch the resource.
func (l SemanticLock) Check(ctx context.Context, db driver.SQL, resource, owner string) error {
	f, err := l.of("check flag", db, resource, owner)
	if err != nil {
		return err
	}
	flag, err := f.hold(ctx)
	if err == nil && flag.Owner != owner {
		err = &NotOwnerError{Owner: owner, Flag: flag}
	}
	return err
}

// Vacant returns nil if the resource has no flag, and keeps that so until the transaction ends:
// data read afterwards is not in use by any saga. Otherwise it returns a [HeldError]. Concurrent
// readers do not wait for each other on PostgreSQL; on MariaDB they do.
func (l SemanticLock) Vacant(ctx context.Context, db driver.SQL, resource string) error {
	f, err := l.flags("look for a flag", db, resource)
	if err != nil {
		return err
	}
	flag, err := f.hold(ctx)
	if err == nil && flag.Owner != "" {
		err = &HeldError{Flag: flag}
	}
	return err
}

// Show returns the flag of a resource as the transaction sees it, without a lock.
func (l SemanticLock) Show(ctx context.Context, db driver.SQL, resource string) (Flag, error) {
	f, err := l.flags("show flag", db, resource)
	if err != nil {
		return Flag{}, err
	}
	flag, _, err := f.look(ctx, "")
	return flag, err
}

func (l SemanticLock) of(op string, db driver.SQL, resource, owner string) (flags, error) {
	if err := driver.CheckName(op, "an owner", owner, driver.MaxTransaction); err != nil {
		return flags{}, err
	}
	return l.flags(op, db, resource)
}

// flags opens the table in a transaction, for an operation on one resource.
func (l SemanticLock) flags(op string, db driver.SQL, resource string) (flags, error) {
	if err := driver.CheckName(op, "a resource", resource, driver.MaxName); err != nil {
		return flags{}, err
	}
	return l.open(op, resource, db)
}

func (l SemanticLock) open(op, resource string, db driver.SQL) (flags, error) {
	t, err := flagTables.Open(op, resource, db, l.Name)
	return flags{t, resource}, err
}

// A Flag is the state of a resource. The zero Flag has no owner.
type Flag struct {
	Resource string
	Owner    string // the transaction that flagged it; empty if there is none
	Purpose  string // for operators
	// Since is the time of the flag, and Until that of its expiry, by the database's clock;
	// zero without an owner.
	Since, Until time.Time
	// Expired means that Until has passed. The flag remains: its owner may be slow, and its
	// writes may still be undone.
	Expired bool
	// Former is the owner before a takeover; empty if the resource was free.
	Former string
	// Risk is the reason of a takeover without proof that Former had ended.
	Risk string
}

// A HeldError reports that another transaction has flagged the resource, possibly with an expired
// flag. Nothing was done. It is an interlock.ErrHeld and an [*interlock.HeldError], and
// Retryable.
type HeldError struct {
	Flag Flag
}

// Error names the resource, its owner, and until when.
func (e *HeldError) Error() string {
	verb := "expires at"
	if e.Flag.Expired {
		verb = "expired at"
	}
	return fmt.Sprintf("%q is flagged by transaction %q for %q, which %s %s", e.Flag.Resource, e.Flag.Owner, e.Flag.Purpose,
		verb, e.Flag.Until.Format(time.RFC3339))
}

// Unwrap returns an [*interlock.HeldError].
func (e *HeldError) Unwrap() error {
	return &interlock.HeldError{Name: e.Flag.Resource, Owner: e.Flag.Owner, Since: e.Flag.Since, Until: e.Flag.Until}
}

// ErrorKind returns [interlock.Retryable].
func (e *HeldError) ErrorKind() interlock.ErrorKind { return interlock.Retryable }

// A NotOwnerError reports that the transaction does not own the resource's flag any more, or
// never did. It is Definite.
type NotOwnerError struct {
	Owner string // the caller
	Flag  Flag   // the current one
}

// Error returns the current owner.
func (e *NotOwnerError) Error() string {
	if e.Flag.Owner == "" {
		return fmt.Sprintf("%q is not flagged by transaction %q, nor by any other", e.Flag.Resource, e.Owner)
	}
	return fmt.Sprintf("%q is not flagged by transaction %q, but by %q", e.Flag.Resource, e.Owner, e.Flag.Owner)
}

// ErrorKind returns [interlock.Definite].
func (e *NotOwnerError) ErrorKind() interlock.ErrorKind { return interlock.Definite }
