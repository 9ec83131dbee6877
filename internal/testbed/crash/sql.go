package crash

import (
	"context"
	"net"

	"github.com/interlock-dev/interlock/driver"
)

// Beginner adds a point before each transaction, statement and commit of db, and
// one after each commit.
func Beginner[T any](db driver.Beginner[T], at *Points) driver.Beginner[T] {
	return beginner[T]{db, at}
}

// BeginnerAt does the same for transactions with a chosen isolation level.
func BeginnerAt[T any](db driver.BeginnerAt[T], at *Points) driver.BeginnerAt[T] {
	return beginnerAt[T]{beginner[T]{db, at}, db}
}

type beginner[T any] struct {
	db driver.Beginner[T]
	at *Points
}

func (b beginner[T]) Begin(ctx context.Context) (driver.Tx[T], error) {
	return b.pass(ctx, b.db.Begin)
}

func (b beginner[T]) pass(ctx context.Context, begin func(context.Context) (driver.Tx[T], error)) (driver.Tx[T], error) {
	b.at.Pass()
	tx, err := begin(ctx)
	if err != nil {
		return nil, err
	}
	return transaction[T]{tx, b.at}, nil
}

type beginnerAt[T any] struct {
	beginner[T]
	db driver.BeginnerAt[T]
}

func (b beginnerAt[T]) BeginAt(ctx context.Context, level driver.Isolation) (driver.Tx[T], error) {
	return b.pass(ctx, func(ctx context.Context) (driver.Tx[T], error) { return b.db.BeginAt(ctx, level) })
}

type transaction[T any] struct {
	driver.Tx[T]
	at *Points
}

// Native returns the user's handle. If it is a driver.SQL, it has the points too.
func (t transaction[T]) Native() T {
	native := t.Tx.Native()
	if db, ok := any(native).(driver.SQL); ok {
		if lent, ok := any(SQL(db, t.at)).(T); ok {
			return lent
		}
	}
	return native
}

func (t transaction[T]) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	t.at.Pass()
	return t.Tx.Exec(ctx, query, args...)
}

func (t transaction[T]) Query(ctx context.Context, query string, args []any, each func(func(...any) error) error) error {
	t.at.Pass()
	return t.Tx.Query(ctx, query, args, each)
}

func (t transaction[T]) Commit(ctx context.Context) error {
	t.at.Pass()
	err := t.Tx.Commit(ctx)
	t.at.Pass()
	return err
}

// SQL adds a point before each statement of db.
func SQL(db driver.SQL, at *Points) driver.SQL { return statements{db, at} }

type statements struct {
	driver.SQL
	at *Points
}

func (s statements) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	s.at.Pass()
	return s.SQL.Exec(ctx, query, args...)
}

func (s statements) Query(ctx context.Context, query string, args []any, each func(func(...any) error) error) error {
	s.at.Pass()
	return s.SQL.Query(ctx, query, args, each)
}

// Wire is a network on which every request has two points, before and after it is sent.
// At the second the answer has not been read. The zero value has none until Watch.
type Wire struct{ at *Points }

// Watch starts counting, also on open connections. It is not safe for use while a
// request is being sent.
func (w *Wire) Watch(at *Points) { w.at = at }

// Dial opens a connection that counts its requests.
func (w *Wire) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &wired{conn, w}, nil
}

type wired struct {
	net.Conn
	wire *Wire
}

func (c *wired) Write(b []byte) (int, error) {
	c.wire.at.Pass()
	n, err := c.Conn.Write(b)
	c.wire.at.Pass()
	return n, err
}
