package limit

import (
	"context"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/backend"
)

// Open is [New] with the system of a URL, such as redis://127.0.0.1:6379, postgres://127.0.0.1/shop or
// memory://name. In a database it creates the [Table] of the default name unless it exists. The program
// must import the driver of the URL's scheme (see lock.Open). ctx bounds the call only. [Limits.Close]
// disconnects.
func Open(ctx context.Context, url string, o *Options) (*Limits, error) {
	b, store, err := open(ctx, url)
	var l *Limits
	if err == nil {
		l, err = New(store, o)
	}
	if err != nil {
		_ = b.Close(context.WithoutCancel(ctx)) // the first error says more
		return nil, err
	}
	l.backend = b
	return l, nil
}

func open(ctx context.Context, url string) (*backend.Backend, driver.Limiter, error) {
	u, err := backend.Parse(url)
	if err != nil {
		return nil, nil, err
	}
	if u.Has(backend.Tables) {
		b, db, err := backend.OpenSQL(ctx, url, Table{})
		if err != nil {
			return nil, nil, err
		}
		return b, FromTable(db, Table{Prefix: u.Setting("prefix")}), nil
	}
	b, err := u.Open(ctx)
	if err != nil {
		return nil, nil, err
	}
	store, ok := b.Limiter("")
	if !ok {
		err = &backend.URLError{Reason: b.URL().Kind() + " keeps no rate limits; use a redis://, postgres:// or mysql:// URL"}
	}
	return b, store, err
}
