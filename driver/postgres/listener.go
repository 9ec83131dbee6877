package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/interlock-dev/interlock/internal/backoff"
)

// listener receives notifications on one channel, on a connection of its own. It connects
// again when that breaks.
type listener struct {
	config  *pgx.ConnConfig
	channel string
	deliver func(payload string) // empty: notifications may have been missed
}

func (l *listener) run(life context.Context) {
	pause := backoff.Policy{First: 100 * time.Millisecond, Max: 5 * time.Second}
	for failed := 1; life.Err() == nil; failed++ {
		if l.listen(life) {
			failed = 1
		}
		pause.Wait(life, failed)
	}
}

// listen delivers notifications until the connection breaks, and reports whether there was one.
func (l *listener) listen(life context.Context) bool {
	ctx, cancel := context.WithTimeout(life, dialTimeout)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, l.config.Copy())
	if err != nil {
		return false
	}
	defer closeSoon(life, conn)
	if _, err := conn.Exec(ctx, "listen "+pgx.Identifier{l.channel}.Sanitize()); err != nil {
		return false
	}
	for l.deliver(""); ; {
		n, err := conn.WaitForNotification(life)
		if err != nil {
			return true
		}
		l.deliver(n.Payload)
	}
}

// closeSoon closes a connection, for which the server gets a second.
func closeSoon(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = conn.Close(ctx)
}
