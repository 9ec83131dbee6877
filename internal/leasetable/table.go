// Package leasetable is a fenced lock by rows with a lease: a row for each name, with its
// owner, its counter and its expiry by the server's clock. It contains no SQL: a driver
// supplies [Rows]. This package has what is the same for every database: waiting, renewal,
// clean-up, inspection and forced release.
package leasetable

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/hints"
	"github.com/interlock-dev/interlock/internal/join"
	"github.com/interlock-dev/interlock/internal/renewal"
)

// Rows is the table in one database. Each method is one transaction, bounded by the driver
// and by ctx, and returns errors as the driver reports them. Renew too locks rows in the
// order of their names.
type Rows interface {
	// Take gives each row to the owner who requests it, unless another has it, and sets Row.
	// Names differ and are in order, and rows are locked in that order. An error concerns
	// all: if it is Definite or interlock.ErrHeld, nothing was done. With several requests, a
	// row that another transaction has locked is an interlock.ErrHeld. If Config.Mixed is set,
	// some of the requests may be releases, as those of Free.
	Take(ctx context.Context, asks []*Ask) error
	// Free releases the names of owners, with the rules of Take.
	Free(ctx context.Context, asks []*Ask) error
	// Renew extends the leases of owners, each for the name at the same index. It returns the
	// owners that lost theirs. If another transaction has locked one of the rows for longer than
	// patience, the error is an interlock.ErrHeld, and nothing was done.
	Renew(ctx context.Context, names, owners []string, ttl, patience time.Duration) (lost []string, err error)
	// Sweep removes rows that were long unused; more reports that some are left.
	Sweep(ctx context.Context) (more bool, err error)
	// Show returns the holder of a name, or of the names with a prefix, in order.
	Show(ctx context.Context, op, name string, prefix bool, limit int) ([]driver.LockState, error)
	// States returns the names with a prefix, each with a text that changes with the holder.
	// Its errors are never Uncertain.
	States(ctx context.Context, prefix string) (map[string]string, error)
	// Break takes the row from its owner, and records that; nil if another has it.
	Break(ctx context.Context, b driver.Break) (*driver.BreakRecord, error)
	// Breaks returns the records of a name, or of all if it is empty, newest first.
	Breaks(ctx context.Context, name string, limit int) ([]driver.BreakRecord, error)
}

// Row is the result of Take.
type Row struct {
	Sent    boottime.Instant // just before the statement was sent
	Counter int64            // of the grant; 0 if another owner has the row
	Owner   string           // the owner of the row
	Since   time.Time        // start of ownership, by the server's clock
	Until   time.Time        // when it expires
	Left    time.Duration    // time until then
}

// Config configures a Table.
type Config struct {
	Driver failure.Driver // the name in errors
	TTL    time.Duration
	// Interval returns the pause after a number of refusals. A hint or the end of the
	// holder's lease ends it early.
	Interval func(refusals int) time.Duration
	Mixed    bool // whether Rows.Take also releases
	Promises interlock.Guarantees
	Batch    int      // the most leases of one Renew
	Sweeps   Schedule // when to sweep
}

// Table implements driver.Fenced, driver.Inspector, driver.Watcher and driver.Breaker. It has two goroutines, and one for each running statement.
type Table struct {
	Config
	rows    Rows
	groups  *groups
	keeper  *renewal.Keeper
	waiters hints.Waiters

	life  context.Context // of every goroutine; ended by Close
	stop  context.CancelFunc
	loops sync.WaitGroup
}

// New returns a Table that is not started. It does no I/O.
func New(rows Rows, c Config) *Table {
	t := &Table{Config: c, rows: rows, groups: newGroups(c.Driver, rows, c.Mixed)}
	t.keeper = renewal.New(renewal.Config{Driver: c.Driver, TTL: c.TTL, Bound: c.TTL / 3, Extend: t.extend, Split: t.alike})
	t.life, t.stop = context.WithCancel(context.Background())
	return t
}

// Guarantees returns the guarantees, which were computed when the Table opened.
func (t *Table) Guarantees() interlock.Guarantees { return t.Promises }

// Start runs renewals, sweeps and loops until Close.
func (t *Table) Start(loops ...func(life context.Context)) {
	sweeps := func(life context.Context) {
		renewal.Loop(life, nil, func() boottime.Instant { return t.Sweeps.Next }, t.sweep)
	}
	for _, loop := range append(loops, t.keeper.Run, sweeps) {
		t.loops.Go(func() { loop(t.life) })
	}
}

// Wake wakes the waiters of a name to try again; of all names if it is empty.
func (t *Table) Wake(name string) { t.waiters.Wake(name) }

// Acquire blocks until r.Owner holds r.Name; see driver.Fenced.
func (t *Table) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if err := t.Driver.CheckNames("acquire", r.Name, r.Owner); err != nil {
		return driver.Grant{}, err
	}
	t.keeper.StopEvents(r.Owner)
	woken, leave := t.waiters.Enter(r.Name)
	defer leave()
	for refusals := 1; ; refusals++ {
		row, err := t.take(ctx, r)
		switch {
		case err != nil:
			return driver.Grant{}, err
		case row.Counter > 0:
			return t.grant(r, row)
		case r.NoWait:
			return driver.Grant{}, &interlock.HeldError{Name: r.Name, Owner: row.Owner, Since: row.Since, Until: row.Until}
		case refusals == 1 && r.Events.Waiting != nil:
			r.Events.Waiting(driver.Place{Ahead: -1, Holder: row.Owner})
		}
		if err := t.Driver.Pause(ctx, t.life, r.Name, woken, min(t.Interval(refusals), row.Left+5*time.Millisecond)); err != nil {
			return driver.Grant{}, err
		}
	}
}

func (t *Table) take(ctx context.Context, r driver.Request) (Row, error) {
	if err := t.usable(ctx, "acquire", r.Name); err != nil {
		return Row{}, err
	}
	return t.groups.take(ctx, r)
}

// grant starts the renewals of the lease.
func (t *Table) grant(r driver.Request, row Row) (driver.Grant, error) {
	if err := driver.Plausible(row.Counter, row.Since); err != nil {
		return driver.Grant{}, t.Driver.New("acquire", r.Name, interlock.Definite, err)
	}
	token, err := interlock.NewToken(row.Counter, 0)
	if err != nil {
		return driver.Grant{}, err
	}
	if boottime.Deadline(row.Sent, r.Lease(t.TTL)) <= boottime.Now() {
		return driver.Grant{}, t.Driver.New("acquire", r.Name, interlock.Uncertain, interlock.ErrExpired)
	}
	return driver.Grant{Lease: t.keeper.Add(r, row.Sent), Token: token}, nil
}

// Release releases the name if owner has it; see driver.Fenced.
func (t *Table) Release(ctx context.Context, name, owner string) error {
	if err := t.Driver.CheckNames("release", name, owner); err != nil {
		return err
	}
	t.keeper.Remove(owner)
	if err := t.usable(ctx, "release", name); err != nil {
		return err
	}
	defer t.Wake(name)
	return t.groups.free(ctx, name, owner)
}

// usable rejects a call after Close, or whose context has ended.
func (t *Table) usable(ctx context.Context, op, name string) error {
	switch {
	case t.life.Err() != nil:
		return t.Driver.Closed(op, name)
	case ctx.Err() != nil:
		return t.Driver.Unsent(ctx, op, name)
	}
	return nil
}

// Close stops renewals, and blocks until acquires and releases under way and all goroutines end, or ctx
// ends. Held locks expire by their leases.
func (t *Table) Close(ctx context.Context) error {
	t.stop()
	t.groups.close()
	if err := join.Wait(ctx, func() { t.loops.Wait(); t.groups.running.Wait() }); err != nil {
		return t.Driver.New("close", "", interlock.Retryable, err)
	}
	return nil
}

// Guarantees returns the guarantees of a table. pushed reports that a release wakes other
// processes; durable reports that commits survive a crash of the server.
func Guarantees(name string, pushed, durable bool, ttl, minTTL, maxTTL time.Duration) interlock.Guarantees {
	g := Session(name, "counter in the name's row, at least the server's microseconds since 2020", durable, ttl)
	g.Liveness, g.Wait, g.ExclusionSurvives, g.MinTTL, g.MaxTTL = interlock.ServerTTL, interlock.Poll, interlock.Partition, minTTL, maxTTL
	if pushed {
		g.Wait = interlock.Push
	}
	if durable {
		g.ExclusionSurvives |= interlock.ServerCrash
	}
	return g
}

// Session returns the guarantees of locks that end with a session of a database, without Wait and
// ExclusionSurvives. durable reports that commits survive a crash of the server.
func Session(name, tokenFrom string, durable bool, ttl time.Duration) interlock.Guarantees {
	g := interlock.Guarantees{
		Driver: name, Class: interlock.Fenced, TokenFrom: tokenFrom,
		Liveness: interlock.Connection, Clock: interlock.ServerClock, Order: interlock.Barging, CrossProcess: true,
		TokensSurvive: interlock.HolderPause | interlock.Partition | interlock.DataLoss |
			interlock.ServerClockJump | interlock.OperatorDelete,
		TTL: ttl, Blind: ttl,
	}
	if durable {
		g.TokensSurvive |= interlock.ServerCrash
	}
	return g
}

// Counters are the stored counters of a namespace, which [Counters.Seed] checks.
type Counters struct {
	Last, Now int64 // the highest counter, and that of the server's clock
	// Raise raises all counters to at least floor. Lower lowers those above the clock to
	// it, and records that.
	Raise func(floor int64) error
	Lower func(owner string, r *driver.Repair) error
}

// Seed compares the counters with the server's clock, and raises or lowers them as the
// seed requests. Implausible counters are an error unless the seed has a repair.
func (c Counters) Seed(s driver.Seed) error {
	now := time.UnixMicro(interlock.EpochUnixMicro + c.Now)
	if err := driver.Plausible(c.Last, now); err != nil {
		if s.Repair == nil {
			return err
		}
		return c.Lower(s.Repair.Record(c.Last, c.Now), s.Repair)
	}
	floor, err := s.Floor(now)
	if err != nil || s.After == 0 || floor <= c.Now {
		return err
	}
	return c.Raise(floor)
}

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
