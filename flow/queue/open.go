package queue

import (
	"context"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/backend"
)

// Open is [New] with a queue of a [Table] in the database of a URL, such as
// postgres://127.0.0.1/shop. It creates the tables unless they exist. The program must import the
// driver of the URL's scheme (see lock.Open). With redis:// the queue is the stream of its name,
// without a table. For tests, memory://shop has the queues of memory.OpenQueue("shop"). ctx bounds
// the call only. [Consumer.Close] disconnects.
func Open(ctx context.Context, url, name string, t Table, handler Handler, o *Options) (*Consumer, error) {
	b, q, err := open(ctx, url, t)
	var c *Consumer
	if err == nil {
		c, err = New(ctx, q, name, handler, o)
	}
	if err != nil {
		_ = b.Close(context.WithoutCancel(ctx)) // the first error says more
		return nil, err
	}
	c.backend = b
	return c, nil
}

// open connects. Close the backend, even after an error.
func open(ctx context.Context, url string, t Table) (*backend.Backend, driver.Queue, error) {
	u, err := backend.Parse(url)
	if err != nil {
		return nil, nil, err
	}
	if u.Has(backend.Tables) {
		b, db, err := backend.OpenSQL(ctx, url, t)
		if err != nil {
			return nil, nil, err
		}
		notifier, err := b.Notifier(ctx, layout.Default)
		return b, FromTable(db, t, notifier), err
	}
	b, err := u.Open(ctx)
	if err != nil {
		return nil, nil, err
	}
	q, ok := b.Queue()
	if !ok {
		err = &interlock.Error{Op: "open queue", Kind: interlock.Definite,
			Err: &backend.URLError{Reason: u.Kind() + " keeps no queues; use a postgres://, mysql://, redis:// or memory:// URL"}}
	}
	return b, q, err
}
