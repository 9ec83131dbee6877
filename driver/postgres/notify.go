package postgres

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/backoff"
)

// DefaultNotifierInterval is the least time between two notifications of a Notifier.
const DefaultNotifierInterval = 5 * time.Millisecond

// maxChannel is the longest name of a channel, in bytes.
const maxChannel = 63

// NotifierOptions of a Notifier; nil and the zero value work.
type NotifierOptions struct {
	// Interval is the least time between two notifications; notifications meanwhile become
	// one. 0 means [DefaultNotifierInterval].
	Interval time.Duration
}

// Notifier notifies other processes by NOTIFY, and in this one at once. It notifies on a
// connection of its own, never in a transaction of the user: there a NOTIFY takes a lock of the whole
// cluster until the commit is done, so that commits wait for each other. It implements
// driver.Notifier.
//
// It has at most two connections, which must not use a pooler that shares sessions: one opens at the
// first Notify, the other at the first Listen, and both open again when they break. Notifications
// during an interruption become one.
type Notifier struct {
	notifier *driver.SharedNotifier
	config   *pgx.ConnConfig
	channel  string
	conn     *pgx.Conn // that notifies; nil until there is one
	end      sync.Once // of conn, after the last use
}

var _ driver.Notifier = (*Notifier)(nil)

// NewNotifier returns a notifier for all processes that use the same channel of one database; it sends
// nothing. A channel has 1 to 63 bytes of UTF-8 without NUL, anything else is an interlock.ErrName.
// Close it.
func NewNotifier(config *pgx.ConnConfig, channel string, o *NotifierOptions) (*Notifier, error) {
	if config == nil {
		return nil, problem("make notifier", channel, interlock.Bug, errors.New("there is no configuration"))
	}
	b := &Notifier{config: config.Copy(), channel: channel}
	interval := DefaultNotifierInterval
	if o != nil && o.Interval != 0 {
		interval = o.Interval
	}
	if err := driver.CheckText("a channel", channel, 1, maxChannel); err != nil {
		return nil, problem("make notifier", channel, interlock.Bug, err)
	}
	if interval < 0 {
		return nil, problem("make notifier", channel, interlock.Bug, errors.New("the interval is negative"))
	}
	b.notifier = driver.NewSharedNotifier(driver.NotifierTransport{Interval: interval, Send: b.send,
		Subscribe: func(life context.Context, deliver func(text string)) {
			(&listener{config: &pgxpool.Config{ConnConfig: b.config}, channel: channel, deliver: deliver}).run(life)
		}})
	return b, nil
}

// Notify notifies all listeners; see driver.Notifier. After Close it notifies this process only.
func (b *Notifier) Notify(names ...string) { b.notifier.Notify(names...) }

// Listen calls each after notifications, and when some may have been missed; see
// driver.Notifier.
func (b *Notifier) Listen(each func(name string)) (stop func()) { return b.notifier.Listen(each) }

// Close ends its connections, and waits for that until ctx ends.
func (b *Notifier) Close(ctx context.Context) error {
	if err := b.notifier.Close(ctx); err != nil {
		return problem("close notifier", b.channel, interlock.Retryable, err)
	}
	b.end.Do(func() { b.hangUp(ctx) })
	return nil
}

// send notifies, on a new connection if there is none.
func (b *Notifier) send(ctx context.Context, text string) error {
	bounded, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	err := b.dial(bounded)
	if err == nil {
		// A notification is a hint: its commit waits for no flush.
		_, err = b.conn.Exec(bounded, `select pg_notify($1, $2), set_config('synchronous_commit', 'off', false)`, b.channel, text)
	}
	if err != nil {
		b.hangUp(ctx)
	}
	return err
}

func (b *Notifier) dial(ctx context.Context) (err error) {
	if b.conn == nil {
		b.conn, err = pgx.ConnectConfig(ctx, b.config.Copy())
	}
	return err
}

func (b *Notifier) hangUp(ctx context.Context) {
	if b.conn != nil {
		closeSoon(ctx, b.conn)
	}
	b.conn = nil
}

// listener receives notifications on one channel, on a connection of its own. It connects as a pool
// does, and again when that breaks.
type listener struct {
	config  *pgxpool.Config
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
	config := l.config.ConnConfig.Copy()
	if before := l.config.BeforeConnect; before != nil && before(ctx, config) != nil {
		return false
	}
	conn, err := pgx.ConnectConfig(ctx, config)
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
