package main

import (
	"context"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/tcc"
)

// holding is the table of holds at both participants, and the guard of each.
var holding = tcc.Table{Name: "trip_item"}

// define names the two resources. The journal stores the names.
func (a *agency) define() {
	a.hotel, a.airline = tcc.Define("hotel", a.rooms.take), tcc.Define("airline", a.seats.take)
}

// book shows the whole pattern: it tries both at once, which only holds them, and then
// decides. It returns with the decision, which is carried out even if this process
// dies. A second call with the same id has the same outcome.
func (a *agency) book(ctx context.Context, id, room, seat string) (tcc.Outcome, error) {
	return a.bookings.Run(ctx, "booking", id,
		a.hotel.Try(tcc.Want{Item: room, N: 1}),
		a.airline.Try(tcc.Want{Item: seat, N: 1}))
}

// abandoned leaves the state of a program that dies between its first try and the decision.
func (a *agency) abandoned(ctx context.Context, id, room string, hold time.Duration) error {
	call := branch.Call{Transaction: id, Branch: "hotel", Operation: branch.Try, Attempt: 1, Begun: time.Now()}
	_, err := a.rooms.take.Try(branch.With(ctx, call), tcc.Want{Item: room, N: 1}, time.Now().Add(hold))
	return err
}

// seller is a participant: it holds and sells units of an item. The runtime frees expired
// holds that are not decided.
type seller[T any] struct {
	db    interlock.BeginnerAt[T]
	holds tcc.Holds[T]
	take  tcc.Resource[tcc.Want, tcc.Want]
}

// newSeller records each sale in its own transaction.
func newSeller[T any](db interlock.BeginnerAt[T], sale func(ctx context.Context, tx T, trip string, w tcc.Want) error) *seller[T] {
	s := &seller[T]{db: db}
	s.holds = tcc.Holds[T]{DB: db, Table: holding, Confirmed: func(ctx context.Context, tx T, w tcc.Want) error {
		return sale(ctx, tx, branch.From(ctx).Transaction, w)
	}}
	s.take = s.holds.Take()
	return s
}

// offer sets the number of units.
func (s *seller[T]) offer(ctx context.Context, item string, n int64) error {
	return s.in(ctx, func(db interlock.SQL) error { return holding.Set(ctx, db, item, n) })
}

// level returns how much of an item is left, held and sold.
func (s *seller[T]) level(ctx context.Context, item string) (l tcc.Level, err error) {
	err = s.in(ctx, func(db interlock.SQL) (err error) {
		l, err = holding.Show(ctx, db, item)
		return err
	})
	return l, err
}

// until waits for a level.
func (s *seller[T]) until(ctx context.Context, item string, done func(tcc.Level) bool) error {
	for {
		l, err := s.level(ctx, item)
		if err != nil || done(l) {
			return err
		}
		pause(ctx, 50*time.Millisecond)
	}
}

// in runs work in a transaction.
func (s *seller[T]) in(ctx context.Context, work func(db interlock.SQL) error) error {
	tx, err := s.db.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(context.WithoutCancel(ctx)) // no effect after the commit
	if err := work(tx); err != nil {
		return err
	}
	return tx.Commit(ctx)
}

// pause waits, unless ctx ends.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
