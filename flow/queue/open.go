package queue

import (
	"context"

	"github.com/interlock-dev/interlock/driver/backend"
)

// Open is [New] with a queue of a [Table] in the database that a URL names, as
// postgres://127.0.0.1/shop. It creates the tables unless they exist. The driver of the URL's
// scheme has to be part of the program (see lock.Open). ctx bounds the opening only.
// [Consumer.Close] disconnects.
func Open(ctx context.Context, url, name string, t Table, handler Handler, o *Options) (*Consumer, error) {
	b, db, err := backend.OpenSQL(ctx, url, t)
	if err != nil {
		return nil, err
	}
	bell, err := b.Bell(ctx, layout.Default)
	var c *Consumer
	if err == nil {
		c, err = New(ctx, In(db, t, bell), name, handler, o)
	}
	if err != nil {
		_ = b.Close(context.WithoutCancel(ctx)) // the first error says more
		return nil, err
	}
	c.backend = b
	return c, nil
}
