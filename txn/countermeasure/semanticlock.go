package countermeasure

import (
	"cmp"
	"context"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
)

// SemanticLock flags resources as being worked on by a saga, or any other transaction
// of transactions, from one of its steps to a later one. A flag is a row that is
// committed, not a lock of the database: nobody waits for it, and it binds those who
// ask. Readers that must not see what may yet be undone ask too, by
// [SemanticLock.Vacant].
//
// A flag does not end by itself. Once it has expired it shows as such, and still
// stands until its owner releases it, or somebody takes it over who has asked whether
// the owner has ended ([Intent].Ended), or who says why that does not matter
// ([Intent].Risk). The new owner finds the data as the former owner left it: a
// saga that ended has released its flags, unless its undo has failed for good.
//
// The zero value is ready once [SemanticLock.Create] made the table. It is safe for
// concurrent use, with a transaction for each.
type SemanticLock struct {
	// Name is the table, or schema.table; empty means "interlock_semantic_lock". It is
	// trusted: never take it from a request.
	Name string
}

// DefaultTTL is after what time a flag shows as expired if nothing else is said.
const DefaultTTL = time.Hour

// maxTTL keeps what expires within the times that databases have.
const maxTTL = 100 * 365 * 24 * time.Hour

// An Intent is what somebody wants to flag.
type Intent struct {
	Resource string // what is flagged: 1 to driver.MaxName bytes
	Owner    string // the transaction's id, 1 to driver.MaxTransaction bytes: branch.Call.Transaction
	Purpose  string // why, for people
	// TTL is after what time the flag shows as expired, by the database's clock; 0
	// means [DefaultTTL], and less than 0, or more than a hundred years, is a Bug.
	TTL time.Duration
	// Ended tells whether the transaction that is in the way has ended, whatever the
	// flag's age; then the flag is taken over. An id that is not known has ended only if
	// ids are kept for longer than flags are. It is asked while the flag's row is
	// locked, so it must not wait for that transaction, nor use this one; what it
	// returns as an error is returned as it is. Nil means that nobody is asked.
	Ended func(ctx context.Context, owner string) (bool, error)
	// Risk, if it is not empty, takes over a flag that has expired, though its owner
	// may be at work. It says why that does no harm, and is kept beside the flag.
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
	if err := readable(op, w.Resource, "a purpose", w.Purpose); err != nil {
		return err
	}
	return readable(op, w.Resource, "a risk", w.Risk)
}

// Create makes the table, unless it exists. Several processes may do it at once. It
// takes effect when the transaction commits, on MariaDB at once: there it commits what
// was done in the transaction before.
func (l SemanticLock) Create(ctx context.Context, db driver.SQL) error {
	f, err := l.open("create table of flags", "", db)
	if err != nil {
		return err
	}
	return f.create(ctx)
}

// Acquire flags a resource that is nobody's. One that the owner has flagged already
// is prolonged, never shortened, and keeps its Since. One of another owner is a
// [HeldError], unless w says that it may be taken over.
//
// It waits for transactions that are just changing the flag, not for the flag. After
// a HeldError the flag's row stays locked until the transaction ends: end it soon, or
// its owner cannot release. [Wait] does so and tries again. Costs one statement on
// PostgreSQL, and two to be refused; up to three on MariaDB, and one to be refused.
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

// Release ends the flag of owner. It does nothing, and says so, if the flag is
// another's or nobody's: it was released before, or taken over. Repeating it does no
// harm. Call it in the transaction that does the saga's last work on the resource, or
// undoes its first.
func (l SemanticLock) Release(ctx context.Context, db driver.SQL, resource, owner string) (was bool, err error) {
	const op = "release flag"
	f, err := l.of(op, db, resource, owner)
	if err != nil {
		return false, err
	}
	return f.release(ctx, owner)
}

// Check returns nil if the flag is owner's, expired or not, and keeps it so until the
// transaction ends. Later steps call it before they read: a flag that was taken over
// is a [NotOwnerError], and then the saga must leave the resource alone.
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

// Vacant returns nil if the resource is nobody's, and keeps it so until the
// transaction ends: what is read after it is not under way in any saga. Otherwise it is
// a [HeldError]. On PostgreSQL any number of readers do that at once; on MariaDB one
// after the other.
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

// Show is the flag of a resource as the transaction sees it, without locking it.
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

// flags is the table in a transaction, for an operation on one resource.
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
