package once

import (
	"context"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/backend"
	"github.com/interlock-dev/interlock/guard/sweep"
)

// A Consumer is an inbox in the database at a URL. It is safe for concurrent use.
type Consumer struct {
	inbox   Inbox
	db      driver.BeginnerAt[interlock.SQL]
	sweeper *sweep.Sweeper
	backend *backend.Backend
}

// Open connects to the database at a URL, such as postgres://127.0.0.1/shop, and creates the
// tables of the inbox unless they exist. It deletes old records in the background until
// [Consumer.Close]; see [Inbox.Sweep]. The program must import the driver of the URL's scheme
// (see lock.Open). ctx bounds only the opening. [Tx] needs no Consumer and works on the user's
// own pool.
func Open(ctx context.Context, url string, in Inbox) (*Consumer, error) {
	b, db, err := backend.OpenSQL(ctx, url, in)
	if err != nil {
		return nil, err
	}
	s, err := sweep.New(db, nil, in)
	if err != nil {
		_ = b.Close(context.WithoutCancel(ctx)) // the first error says more
		return nil, err
	}
	return &Consumer{inbox: in, db: db, sweeper: s, backend: b}, nil
}

// Receive records m in a new transaction, runs fn there if m is new, and commits both; see
// [Tx].
func (c *Consumer) Receive(ctx context.Context, m Message, fn func(ctx context.Context, tx interlock.SQL) error) (Outcome, error) {
	return Tx(ctx, c.db, c.inbox, m, fn)
}

// Close stops deleting old records, and disconnects. It waits for running work, or until ctx
// ends.
func (c *Consumer) Close(ctx context.Context) error {
	_ = c.sweeper.Close(ctx) // it has no connection of its own
	return c.backend.Close(ctx)
}
