package postgres

import (
	"context"
	"crypto/rand"
	"errors"
	mathrand "math/rand/v2"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/internal/hints"
	"github.com/interlock-dev/interlock/internal/join"
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
	config   *pgx.ConnConfig
	channel  string
	interval time.Duration
	self     string // in what it notifies, so that it does not ring twice
	life     context.Context
	end      context.CancelFunc
	loops    sync.WaitGroup
	rung     chan struct{}

	mu                 sync.Mutex
	ears               map[*ear]bool
	notifying, hearing bool
}

var _ driver.Bell = (*Bell)(nil)

type ear struct{ each func() }

// NewBell makes a bell of all who name the same channel in one database; it sends
// nothing. A channel has 1 to 63 bytes of UTF-8 without NUL, anything else is an
// interlock.ErrName. Close it.
func NewBell(config *pgx.ConnConfig, channel string, o *BellOptions) (*Bell, error) {
	if config == nil {
		return nil, problem("make bell", channel, interlock.Bug, errors.New("there is no configuration"))
	}
	b := &Bell{config: config.Copy(), channel: channel, interval: DefaultBellInterval, self: rand.Text(),
		rung: make(chan struct{}, 1), ears: map[*ear]bool{}}
	if o != nil && o.Interval != 0 {
		b.interval = o.Interval
	}
	if err := driver.CheckText("a channel", channel, 1, maxChannel); err != nil {
		return nil, problem("make bell", channel, interlock.Bug, err)
	}
	if b.interval < 0 {
		return nil, problem("make bell", channel, interlock.Bug, errors.New("the interval is negative"))
	}
	b.life, b.end = context.WithCancel(context.Background())
	return b, nil
}

// Ring wakes all who listen; see driver.Bell. After Close it rings in this process
// only.
func (b *Bell) Ring() {
	b.peal()
	b.start(&b.notifying, b.notify)
	hints.Signal(b.rung)
}

// Listen calls each after rings, and when some may have been missed; see
// driver.Bell.
func (b *Bell) Listen(each func()) (stop func()) {
	e := &ear{each}
	b.mu.Lock()
	b.ears[e] = true
	b.mu.Unlock()
	b.start(&b.hearing, (&listener{config: b.config, channel: b.channel, heard: b.heard}).run)
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.ears, e)
	}
}

// Close ends its connections, and waits for that until ctx ends.
func (b *Bell) Close(ctx context.Context) error {
	b.mu.Lock()
	b.end()
	b.mu.Unlock()
	if err := join.Wait(ctx, b.loops.Wait); err != nil {
		return problem("close bell", b.channel, interlock.Retryable, err)
	}
	return nil
}

// start runs a loop unless it runs, or the bell was closed.
func (b *Bell) start(running *bool, loop func(life context.Context)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !*running && b.life.Err() == nil {
		*running = true
		b.loops.Go(func() { loop(b.life) })
	}
}

// heard takes what the listener hears.
func (b *Bell) heard(payload string) {
	if payload != b.self {
		b.peal()
	}
}

// peal calls all who listen.
func (b *Bell) peal() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for e := range b.ears {
		e.each()
	}
}

// notify sends a notification for the rings of each interval, and again what was not
// sent for sure.
func (b *Bell) notify(context.Context) {
	var conn *pgx.Conn
	defer func() { b.hangUp(conn) }()
	pause := backoff.Policy{First: 50 * time.Millisecond, Max: 5 * time.Second}
	failed := 0
	for {
		select {
		case <-b.rung:
		case <-b.life.Done():
			return
		}
		for {
			var err error
			if conn, err = b.send(conn); err == nil {
				break
			}
			b.hangUp(conn)
			conn = nil
			if failed++; !b.wait(pause.Delay(failed, mathrand.Float64())) {
				return
			}
		}
		if failed = 0; !b.wait(b.interval) {
			return
		}
	}
}

// send notifies, on a new connection if there is none.
func (b *Bell) send(conn *pgx.Conn) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(b.life, dialTimeout)
	defer cancel()
	if conn == nil {
		made, err := pgx.ConnectConfig(ctx, b.config.Copy())
		if err != nil {
			return nil, err
		}
		conn = made
	}
	_, err := conn.Exec(ctx, `select pg_notify($1, $2)`, b.channel, b.self)
	return conn, err
}

func (b *Bell) hangUp(conn *pgx.Conn) {
	if conn != nil {
		closeSoon(b.life, conn)
	}
}

// wait reports whether the bell is still open.
func (b *Bell) wait(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-b.life.Done():
		return false
	}
}
