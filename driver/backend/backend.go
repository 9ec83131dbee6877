package backend

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// LockOptions configures the locks on a backend; the zero value works.
type LockOptions struct {
	// TTL is the lifetime of a claim without renewal; 0 means the URL's setting ttl or,
	// without one, the driver's default of 30 s.
	TTL time.Duration
	// Prefix precedes every key, or every name if the driver has no keys of its own; empty
	// means the setting prefix of the URL.
	Prefix string
	// Seed sets where tokens start; Redis does not use it.
	Seed driver.Seed
}

// A Connection is a driver's connection to a system. Type assertions find more than locks:
// [Viewer], [ValueKeeper], [JournalKeeper], [Fencer], [Ringer], [RequestKeeper], [KeyKeeper],
// [LimitKeeper], [QueueKeeper], [Database], [Preparer]. The [Backend] ignores the result of a method
// that returns an error.
type Connection interface {
	// Fenced opens the locks. It blocks until the backend answers or ctx ends, which bounds the
	// opening only. The [Backend] closes the locks before the Connection.
	Fenced(ctx context.Context, o LockOptions) (Locks, error)
	// Close disconnects.
	Close() error
}

// Locks are a backend's locks with tokens, and can be listed, watched and broken.
type Locks interface {
	driver.Fenced
	driver.Inspector
	driver.Watcher
	driver.Breaker
}

// A Viewer shows locks without tokens, which Fenced cannot open.
type Viewer interface {
	// View opens the view. ok is false if Fenced has the locks.
	View(ctx context.Context, o LockOptions) (v View, ok bool, err error)
}

// View lists locks, reports their changes, and breaks them.
type View interface {
	driver.Inspector
	driver.Watcher
	driver.Breaker
	// Close ends the view, and blocks until that is done or ctx ends.
	Close(ctx context.Context) error
}

// A ValueKeeper stores small values under tokens.
type ValueKeeper interface {
	// Values opens the values with a name prefix. ctx bounds the opening only.
	Values(ctx context.Context, prefix string) (driver.Values, error)
}

// A JournalKeeper stores the journal of transactions, without a table.
type JournalKeeper interface {
	// Journal opens the journal of a name; empty is the default. ctx bounds the opening only.
	Journal(ctx context.Context, name string) (driver.Journal, error)
}

// A Fencer has guards without a table.
type Fencer interface {
	// Fence returns the guard of the keys with a prefix. It does not block.
	Fence(prefix string) driver.Fence
}

// A Ringer has a notifier that reaches all processes of one journal.
type Ringer interface {
	// Notifier opens the notifier of a name; nil if the connection cannot receive
	// notifications, as through a pooler that shares sessions. close ends it. ctx bounds the
	// opening only.
	Notifier(ctx context.Context, name string) (b driver.Notifier, close func(context.Context) error, err error)
}

// A RequestKeeper stores the records of idempotent requests, without a table.
type RequestKeeper interface {
	// Requests returns the records of the keys with a prefix. It does not block.
	Requests(prefix string) driver.Idempotency
}

// A KeyKeeper stores values for compare-and-swap, without a table of the user's.
type KeyKeeper interface {
	// KeyValues returns the values with a prefix. It does not block.
	KeyValues(prefix string) driver.KeyValues
}

// A QueueKeeper stores queues of messages, without a table.
type QueueKeeper interface {
	// Queue returns the queues of all names. It does not block.
	Queue() driver.Queue
}

// A LimitKeeper stores rate limits, without a table.
type LimitKeeper interface {
	// Limiter returns the limiter of the keys with a prefix. It does not block.
	Limiter(prefix string) driver.Limiter
}

// A Database stores tables: of guards, journals and outboxes.
type Database interface {
	// SQL begins transactions on the connection's own pool. It does not block.
	SQL() driver.BeginnerAt[driver.SQL]
}

// A Preparer takes part in two-phase commit.
type Preparer interface {
	// Participant opens the participant of a namespace. ctx bounds the opening only.
	Participant(ctx context.Context, namespace string) (driver.Participant, error)
}

// A Backend is an open connection to one system. It is safe for concurrent use.
type Backend struct {
	url  *URL
	conn Connection

	mu     sync.Mutex
	opened []func(context.Context) error
}

// Open connects to the backend that a URL names. Some backends receive no request before
// something is opened on them. The context bounds the opening only. The error is a [*URLError]
// if the URL is wrong.
func Open(ctx context.Context, url string) (*Backend, error) {
	u, err := Parse(url)
	if err != nil {
		return nil, err
	}
	return u.Open(ctx)
}

// Open connects; see the function [Open].
func (u *URL) Open(ctx context.Context) (*Backend, error) {
	conn, err := u.scheme.Connect(ctx, u)
	if err != nil {
		return nil, err
	}
	return &Backend{url: u, conn: conn}, nil
}

// URL returns the backend's URL.
func (b *Backend) URL() *URL { return b.url }

// Connection returns the driver's connection, for features of one driver.
func (b *Backend) Connection() Connection { return b.conn }

// patience bounds disconnecting. pgx waits up to 15 s for a server that is silent.
const patience = 2 * time.Second

// Close closes everything that was opened on the backend, then disconnects. Held claims expire
// by their leases. It blocks until that is done or ctx ends; locks in etcd, ZooKeeper and Consul
// ignore the end of ctx, and clean up for at most 1 s, or some seconds in ZooKeeper. It waits at
// most 2 s for the client to disconnect, which then ends in the background. On a nil Backend it
// does nothing.
func (b *Backend) Close(ctx context.Context) error {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	opened := b.opened
	b.opened = nil
	b.mu.Unlock()
	var errs []error
	for i := len(opened) - 1; i >= 0; i-- {
		errs = append(errs, opened[i](ctx))
	}
	return errors.Join(append(errs, b.disconnect(ctx))...)
}

func (b *Backend) disconnect(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("not done within %v: %w", patience, context.DeadlineExceeded))
	defer cancel()
	closed := make(chan error, 1)
	go func() { closed <- b.conn.Close() }() // ends when the driver gives its sockets up
	select {
	case err := <-closed:
		return err
	case <-ctx.Done():
		return &interlock.Error{Op: "disconnect", Driver: b.url.Kind(), Kind: interlock.Definite, Err: context.Cause(ctx)}
	}
}

func (b *Backend) closing(close func(context.Context) error) {
	b.mu.Lock()
	b.opened = append(b.opened, close)
	b.mu.Unlock()
}

// resolve adds the settings of the URL.
func (b *Backend) resolve(o LockOptions) (LockOptions, error) {
	if err := b.url.CheckTTL(o.TTL); err != nil {
		return o, err
	}
	if o.TTL == 0 {
		o.TTL, _ = b.url.ttl() // Parse has checked it
	}
	o.Prefix = cmp.Or(o.Prefix, b.url.Setting("prefix"))
	return o, nil
}

// Fenced opens the locks with tokens. The backend closes them.
func (b *Backend) Fenced(ctx context.Context, o LockOptions) (Locks, error) {
	if err := b.url.CheckFenced(); err != nil {
		return nil, err
	}
	o, err := b.resolve(o)
	if err != nil {
		return nil, err
	}
	prefix := b.beside(&o.Prefix)
	d, err := b.conn.Fenced(ctx, o)
	if err != nil {
		return nil, err
	}
	b.closing(d.Close)
	return below(prefix, d), nil
}

// beside returns the prefix if the driver does not support prefixes, and clears *prefix.
func (b *Backend) beside(prefix *string) string {
	if b.url.scheme.Prefixes {
		return ""
	}
	taken := *prefix
	*prefix = ""
	return taken
}

// View opens a view of the locks, which acquires nothing. The backend closes it.
func (b *Backend) View(ctx context.Context, o LockOptions) (View, error) {
	o, err := b.resolve(o)
	if err != nil {
		return nil, err
	}
	if c, ok := b.conn.(Viewer); ok {
		prefix := b.beside(&o.Prefix)
		v, ok, err := c.View(ctx, o)
		switch {
		case err != nil:
			return nil, err
		case ok:
			b.closing(v.Close)
			return belowView(prefix, v), nil
		}
		o.Prefix += prefix // one of them is empty
	}
	return b.Fenced(ctx, o)
}

// Values opens the small values with a prefix; empty means the setting prefix of the URL. A
// backend without values is a Definite error.
func (b *Backend) Values(ctx context.Context, prefix string) (driver.Values, error) {
	c, ok := b.conn.(ValueKeeper)
	if !ok {
		return nil, b.lacks("keeps no values")
	}
	prefix = cmp.Or(prefix, b.url.Setting("prefix"))
	rest := b.beside(&prefix)
	v, err := c.Values(ctx, prefix)
	if err != nil {
		return nil, err
	}
	return belowValues(rest, v), nil
}

// ValuesIfAny returns [Backend.Values], or nil for a backend without values.
func (b *Backend) ValuesIfAny(ctx context.Context, prefix string) (driver.Values, error) {
	if !b.url.Has(Values) {
		return nil, nil
	}
	return b.Values(ctx, prefix)
}

// Journal opens the journal of a name in a backend that needs no tables for it; ok is false if
// it has none. A database stores it in tables: see [Backend.SQL].
func (b *Backend) Journal(ctx context.Context, name string) (j driver.Journal, ok bool, err error) {
	c, ok := b.conn.(JournalKeeper)
	if !ok {
		return nil, false, nil
	}
	j, err = c.Journal(ctx, name)
	return j, true, err
}

// Notifier opens the notifier of a name; nil if the backend has none. The backend closes it.
func (b *Backend) Notifier(ctx context.Context, name string) (driver.Notifier, error) {
	c, ok := b.conn.(Ringer)
	if !ok {
		return nil, nil
	}
	notifier, end, err := c.Notifier(ctx, name)
	if notifier == nil || err != nil {
		return nil, err
	}
	b.closing(end)
	return notifier, nil
}

// Fence returns the guard of a key-value store, whose marks have a prefix if the store supports it;
// empty means the setting prefix of the URL. ok is false for other backends.
func (b *Backend) Fence(prefix string) (f driver.Fence, ok bool) {
	c, ok := b.conn.(Fencer)
	if !ok {
		return nil, false
	}
	return c.Fence(cmp.Or(prefix, b.url.Setting("prefix"))), true
}

// Requests returns the records of idempotent requests; ok is false if the backend stores them
// in a table, or not at all.
func (b *Backend) Requests(prefix string) (r driver.Idempotency, ok bool) {
	c, ok := b.conn.(RequestKeeper)
	if !ok {
		return nil, false
	}
	return c.Requests(cmp.Or(prefix, b.url.Setting("prefix"))), true
}

// KeyValues returns the values for compare-and-swap with a prefix; empty means the setting
// prefix of the URL. ok is false if the backend has none.
func (b *Backend) KeyValues(prefix string) (k driver.KeyValues, ok bool) {
	c, ok := b.conn.(KeyKeeper)
	if !ok {
		return nil, false
	}
	return c.KeyValues(cmp.Or(prefix, b.url.Setting("prefix"))), true
}

// Queue returns the queues; ok is false if the backend stores them in a table, or not at all.
func (b *Backend) Queue() (q driver.Queue, ok bool) {
	c, ok := b.conn.(QueueKeeper)
	if !ok {
		return nil, false
	}
	return c.Queue(), true
}

// Limiter returns the rate limits; ok is false if the backend stores them in a table, or not at
// all.
func (b *Backend) Limiter(prefix string) (l driver.Limiter, ok bool) {
	c, ok := b.conn.(LimitKeeper)
	if !ok {
		return nil, false
	}
	return c.Limiter(cmp.Or(prefix, b.url.Setting("prefix"))), true
}

// SQL runs transactions in a database; ok is false for other backends.
func (b *Backend) SQL() (db driver.BeginnerAt[driver.SQL], ok bool) {
	c, ok := b.conn.(Database)
	if !ok {
		return nil, false
	}
	return c.SQL(), true
}

// Participant opens the backend's participant in two-phase commits. A backend that cannot
// prepare is a Definite error.
func (b *Backend) Participant(ctx context.Context, namespace string) (driver.Participant, error) {
	c, ok := b.conn.(Preparer)
	if !ok {
		return nil, b.lacks("prepares no transactions")
	}
	p, err := c.Participant(ctx, namespace)
	if err != nil {
		return nil, err
	}
	return p, nil
}

func (b *Backend) lacks(what string) error {
	return &interlock.Error{Op: "open", Driver: b.url.Kind(), Kind: interlock.Definite, Err: fmt.Errorf("%s %s", b.url, what)}
}

// Build opens the locks of the backend that a URL names, and calls construct with them. If that
// fails, Build closes the backend; else the caller does, after closing the result.
func Build[T any](ctx context.Context, url string, construct func(*Backend, driver.Fenced) (T, error)) (made T, b *Backend, err error) {
	if b, err = Open(ctx, url); err != nil {
		return made, nil, err
	}
	d, err := b.Fenced(ctx, LockOptions{})
	if err == nil {
		made, err = construct(b, d)
	}
	if err != nil {
		_ = b.Close(context.WithoutCancel(ctx)) // nothing is held; the first error matters
		return made, nil, err
	}
	return made, b, nil
}

// OpenSQL connects to the database that a URL names, and creates missing tables. The caller
// closes the backend. A URL of another system is a [*URLError].
func OpenSQL(ctx context.Context, url string, tables ...driver.Creator) (*Backend, driver.BeginnerAt[driver.SQL], error) {
	u, err := Parse(url)
	if err != nil {
		return nil, nil, err
	}
	if !u.Has(Tables) {
		return nil, nil, &interlock.Error{Op: "open", Driver: u.Kind(), Kind: interlock.Definite,
			Err: &URLError{u.Kind() + " has no SQL tables; use a postgres:// or mysql:// URL"}}
	}
	b, err := u.Open(ctx)
	if err != nil {
		return nil, nil, err
	}
	db, _ := b.SQL()
	if len(tables) > 0 {
		err = driver.Create(ctx, db, tables...)
	}
	if err != nil {
		_ = b.Close(context.WithoutCancel(ctx)) // the first error matters
		return nil, nil, err
	}
	return b, db, nil
}
