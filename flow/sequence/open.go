package sequence

import (
	"context"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver/backend"
)

// Open is [New] with a [Table] in the database that a URL names, as
// postgres://127.0.0.1/shop, where the handler's effects are as well. It creates the table
// unless it exists. The driver of the URL's scheme has to be part of the program (see
// lock.Open). ctx bounds the opening only. [Sequencer.Close] disconnects.
func Open(ctx context.Context, url, stream string, t Table, handler Handler[interlock.SQL], o *Options) (*Sequencer[interlock.SQL], error) {
	b, db, err := backend.OpenSQL(ctx, url, t)
	if err != nil {
		return nil, err
	}
	s, err := New(stream, InTx(db, t), handler, o)
	if err != nil {
		_ = b.Close(context.WithoutCancel(ctx)) // the first error says more
		return nil, err
	}
	s.backend = b
	return s, nil
}
