package postgres

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/interlock-dev/interlock/internal/backoff"
)

// listener hears notifications on one channel, on a connection of its own that
// it makes anew when it breaks.
type listener struct {
	config  *pgx.ConnConfig
	channel string
	life    context.Context
	heard   interface{ ring(payload string) } // the empty payload: anything may have been missed
}

func (l *listener) run() {
	pause := backoff.Policy{First: 100 * time.Millisecond, Max: 5 * time.Second}
	for failed := 1; l.life.Err() == nil; failed++ {
		if l.listen() {
			failed = 1
		}
		timer := time.NewTimer(pause.Delay(failed, rand.Float64()))
		select {
		case <-l.life.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
}

// listen hears until the connection breaks, and reports whether there was one.
func (l *listener) listen() bool {
	ctx, cancel := context.WithTimeout(l.life, dialTimeout)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, l.config.Copy())
	if err != nil {
		return false
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(l.life), time.Second)
		defer cancel()
		_ = conn.Close(closing)
	}()
	if _, err := conn.Exec(ctx, "listen "+pgx.Identifier{l.channel}.Sanitize()); err != nil {
		return false
	}
	for l.heard.ring(""); ; {
		n, err := conn.WaitForNotification(l.life)
		if err != nil {
			return true
		}
		l.heard.ring(n.Payload)
	}
}
