package idempotency

import (
	"context"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/backend"
)

// opened is the state that Close ends.
type opened struct {
	tables  *SQL[interlock.SQL] // nil without a database
	backend *backend.Backend
	stop    context.CancelFunc
	ended   chan struct{}
}

// Open connects to the system at a URL, such as postgres://127.0.0.1/shop or redis://127.0.0.1,
// and keeps records there. In a database it uses a [Table] with the default name, and creates
// the table unless it exists. A [Reaper] with the default options runs until [Store.Close]. The
// program must import the driver of the URL's scheme (see lock.Open). ctx bounds only the
// opening.
func Open(ctx context.Context, url string, o *Options) (*Store, error) {
	u, err := backend.Parse(url)
	if err != nil {
		return nil, err
	}
	var b *backend.Backend
	var tables *SQL[interlock.SQL]
	var records driver.Idempotency
	if u.Has(backend.Tables) {
		var db driver.BeginnerAt[interlock.SQL]
		if b, db, err = backend.OpenSQL(ctx, url, Table{}); err == nil {
			tables = NewSQL(db, Table{})
			records = tables
		}
	} else if b, err = u.Open(ctx); err == nil {
		var ok bool
		if records, ok = b.Requests(""); !ok {
			err = &backend.URLError{Reason: u.Kind() + " keeps no requests; use a postgres://, mysql:// or redis:// URL"}
		}
	}
	var s *Store
	if err == nil {
		s, err = New(records, o)
	}
	if err != nil {
		_ = b.Close(context.WithoutCancel(ctx)) // the first error says more
		return nil, err
	}
	background, stop := context.WithCancel(context.Background())
	s.opened = &opened{tables: tables, backend: b, stop: stop, ended: make(chan struct{})}
	go func() {
		defer close(s.opened.ended)
		_ = NewReaper(s, nil).Run(background) // until Close
	}()
	return s, nil
}

// Tables returns the records of a store that [Open] opened in a database, for [Phase] and
// [LastPhase]. Otherwise it returns nil: use [Step].
func (s *Store) Tables() *SQL[interlock.SQL] {
	if s.opened == nil {
		return nil
	}
	return s.opened.tables
}

// Close stops the reaper and disconnects. It waits for a running pass of the reaper, or until
// ctx ends. For a store of [New] it does nothing.
func (s *Store) Close(ctx context.Context) error {
	if s.opened == nil {
		return nil
	}
	s.opened.stop()
	select {
	case <-s.opened.ended:
	case <-ctx.Done():
	}
	return s.opened.backend.Close(ctx)
}
