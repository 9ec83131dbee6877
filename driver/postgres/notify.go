package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// DefaultBellInterval is the least time between two notifications of a Bell.
const DefaultBellInterval = 5 * time.Millisecond

// maxChannel is the longest name of a channel, in bytes.
const maxChannel = 63

// BellOptions of a Bell; nil and the zero value work.
type BellOptions struct {
	// Interval is the least time between two notifications; rings meanwhile become
	// one. 0 means [DefaultBellInterval].
	Interval time.Duration
}

// Bell rings in other processes by NOTIFY, and in this one at once. It notifies on a
// connection of its own, never in a transaction of the user's: there a NOTIFY takes
// a lock of the whole cluster until the commit is done, and all who commit wait for
// each other. It implements driver.Bell.
//
// It has two connections at most, which must not lead through a pooler that shares
// sessions: one is made at the first Ring, the other at the first Listen, and both
// again when they break. Rings that fall into an interruption are one afterwards.
type Bell struct {
	bell    *driver.SharedBell
	config  *pgx.ConnConfig
	channel string
	conn    *pgx.Conn // that notifies; nil until there is one
}

var _ driver.Bell = (*Bell)(nil)

// NewBell makes a bell of all who name the same channel in one database; it sends
// nothing. A channel has 1 to 63 bytes of UTF-8 without NUL, anything else is an
// interlock.ErrName. Close it.
func NewBell(config *pgx.ConnConfig, channel string, o *BellOptions) (*Bell, error) {
	if config == nil {
		return nil, problem("make bell", channel, interlock.Bug, errors.New("there is no configuration"))
	}
	b := &Bell{config: config.Copy(), channel: channel}
	interval := DefaultBellInterval
	if o != nil && o.Interval != 0 {
		interval = o.Interval
	}
	if err := driver.CheckText("a channel", channel, 1, maxChannel); err != nil {
		return nil, problem("make bell", channel, interlock.Bug, err)
	}
	if interval < 0 {
		return nil, problem("make bell", channel, interlock.Bug, errors.New("the interval is negative"))
	}
	b.bell = driver.NewSharedBell(driver.BellTransport{Interval: interval, Send: b.send, Hear: b.hear})
	return b, nil
}

// Ring wakes all who listen; see driver.Bell. After Close it rings in this process
// only.
func (b *Bell) Ring(names ...string) { b.bell.Ring(names...) }

// Listen calls each after rings, and when some may have been missed; see
// driver.Bell.
func (b *Bell) Listen(each func(name string)) (stop func()) { return b.bell.Listen(each) }

// Close ends its connections, and waits for that until ctx ends.
func (b *Bell) Close(ctx context.Context) error {
	if err := b.bell.Close(ctx); err != nil {
		return problem("close bell", b.channel, interlock.Retryable, err)
	}
	b.hangUp(ctx)
	return nil
}

// hear listens, and connects again when that breaks.
func (b *Bell) hear(life context.Context, heard func(text string)) {
	(&listener{config: b.config, channel: b.channel, heard: heard}).run(life)
}

// send notifies, on a new connection if there is none.
func (b *Bell) send(ctx context.Context, text string) error {
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

func (b *Bell) dial(ctx context.Context) (err error) {
	if b.conn == nil {
		b.conn, err = pgx.ConnectConfig(ctx, b.config.Copy())
	}
	return err
}

func (b *Bell) hangUp(ctx context.Context) {
	if b.conn != nil {
		closeSoon(ctx, b.conn)
	}
	b.conn = nil
}
