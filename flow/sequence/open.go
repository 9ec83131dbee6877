package sequence

import (
	"context"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver/backend"
)

// Open is [New] with a [Table] in the database of a URL, such as postgres://127.0.0.1/shop, where the
// effects of the handler are as well. It creates the tables unless they exist. The program must import
// the driver of the URL's scheme (see lock.Open). ctx bounds the call only. [Sequencer.Close]
// disconnects.
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
