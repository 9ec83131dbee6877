package postgres

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
	"github.com/interlock-dev/interlock/internal/hints"
	"github.com/interlock-dev/interlock/internal/join"
	"github.com/interlock-dev/interlock/internal/leasetable"
)

// heartbeat is the mean pause between two tries of a waiter without a notification.
const heartbeat = time.Second

// Driver is a fenced lock by session advisory locks, all on one connection. It is safe for concurrent
// use, and has three goroutines for any number of locks.
type Driver struct {
	dialer     *dialer
	ttl        time.Duration
	guarantees interlock.Guarantees
	key        func(name string) int64

	life    context.Context // of every goroutine; ended by Close
	stop    context.CancelFunc
	loops   sync.WaitGroup
	changed chan struct{} // wakes the goroutine of maintain before looksAt

	mu       sync.Mutex
	closed   bool
	table    *table
	session  *session // or nil
	dialing  *dialing
	former   []int32 // sessions that the server may not have ended
	requests map[identity]*request
	watchers map[*watcher]bool
	looksAt  boottime.Instant // when the goroutine of maintain looks again
}

var (
	_ driver.Fenced    = (*Driver)(nil)
	_ driver.Inspector = (*Driver)(nil)
	_ driver.Watcher   = (*Driver)(nil)
	_ driver.Breaker   = (*Driver)(nil)
)

// dialing is one attempt to open a session, for all callers.
type dialing struct {
	done chan struct{}
	err  error
}

// Open connects with a configuration like that of the user's pool
// (pool.Config().ConnConfig), creates missing tables, and computes the guarantees. The connection is
// the driver's own; BeforeConnect of a pool is not called for it. A pooler that assigns server
// processes to transactions is refused with a [*PoolerError]; a standby, a version before 14 and a
// database that is not in UTF-8 are refused, too.
func Open(ctx context.Context, config *pgx.ConnConfig, o *Options) (*Driver, error) {
	options, err := o.withDefaults()
	if err = leasetable.CheckOpening(ctx, fail, err, config != nil, "a configuration is required: see pgx.ParseConfig, or take that of a pool"); err != nil {
		return nil, err
	}
	d := &Driver{
		dialer:  &dialer{config: config.Copy(), namespace: options.Namespace, ttl: options.TTL, seed: options.Seed},
		ttl:     options.TTL,
		key:     func(name string) int64 { return Key(options.Namespace, name) },
		changed: make(chan struct{}, 1), requests: map[identity]*request{}, watchers: map[*watcher]bool{},
	}
	d.table = newTable(jittered)
	d.life, d.stop = context.WithCancel(context.Background())
	s, err := d.connected(ctx, "open", "")
	if err != nil {
		d.stop()
		d.loops.Wait()
		return nil, err
	}
	d.guarantees = leasetable.Session("postgres", "sequence, drawn while the lock is held; at least the server's microseconds since 2020 when a session opens",
		s.facts.durable, options.TTL)
	d.guarantees.Wait, d.guarantees.ExclusionSurvives = interlock.Push, interlock.Partition
	d.loops.Go(d.maintain)
	return d, nil
}

// jittered returns the pause before the next try of a waiter without a notification.
func jittered() time.Duration {
	return heartbeat*3/4 + rand.N(heartbeat/2)
}

// Guarantees returns the guarantees, which were computed when the driver opened.
func (d *Driver) Guarantees() interlock.Guarantees { return d.guarantees }

// connected returns the session, and opens one if there is none.
func (d *Driver) connected(ctx context.Context, op, name string) (*session, error) {
	for {
		d.mu.Lock()
		s, attempt := d.session, d.dialing
		if d.closed {
			d.mu.Unlock()
			return nil, fail.Closed(op, name)
		}
		if s == nil && attempt == nil {
			attempt = &dialing{done: make(chan struct{})}
			d.dialing = attempt
			d.loops.Go(func() { d.dial(attempt) })
		}
		d.mu.Unlock()
		if s != nil {
			return s, nil
		}
		select {
		case <-attempt.done:
			if attempt.err != nil {
				return nil, ofOpening(op, name, attempt.err)
			}
		case <-ctx.Done():
			return nil, fail.Unsent(ctx, op, name)
		}
	}
}

// dial makes one attempt at a session.
func (d *Driver) dial(attempt *dialing) {
	ctx, cancel := context.WithTimeout(d.life, dialTimeout)
	defer cancel()
	d.mu.Lock()
	former := append([]int32(nil), d.former...)
	d.mu.Unlock()
	s, conn, err := d.dialer.open(ctx, former)
	d.mu.Lock()
	defer d.mu.Unlock()
	defer close(attempt.done)
	d.dialing = nil
	if err == nil {
		err = d.begin(s, conn)
	}
	if err != nil {
		attempt.err = err
		return
	}
	d.former = d.former[len(former):]
}

// begin makes s the session of the driver.
func (d *Driver) begin(s *session, conn *pgx.Conn) error {
	hijacked, err := conn.PgConn().Hijack()
	if err != nil {
		return errors.Join(err, conn.PgConn().Conn().Close())
	}
	if d.closed {
		return errors.Join(interlock.ErrClosed, hijacked.Conn.Close())
	}
	d.session = s
	d.table = newTable(jittered)
	s.pipe = newPipe(hijacked, &d.loops, s.id, d.ttl, hooks{
		notify:   func(channel, payload string) { d.handleNotification(s, channel, payload) },
		finished: func(calls []*call, a answer) { d.finished(s, calls, a) },
		failed:   func(err error) { d.endSession(s, err) },
	})
	for w := range d.watchers {
		w.names.Miss()
	}
	hints.Signal(d.changed)
	return nil
}

// endSession handles the end of a session: its waiters get no answer, and its claims are lost.
func (d *Driver) endSession(s *session, cause error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.session != s || d.closed {
		return // after Close held locks are left to expire
	}
	d.session = nil
	d.former = append(d.former, s.id)
	ranOut := s.lease.Remaining() <= 0
	s.lease.End()
	for _, r := range d.requests {
		r.sessionOver(ranOut, cause)
	}
	clear(d.requests)
	d.table = newTable(jittered)
	for w := range d.watchers {
		w.names.Miss()
	}
	hints.Signal(d.changed)
}

// checkAnswer ends the session if an answer shows that it is invalid, or arrived after
// its lease.
func (d *Driver) checkAnswer(s *session, a answer) {
	switch {
	case isSessionInvalid(a.err):
		s.pipe.end(a.err)
	case s.lease.Remaining() <= 0:
		s.pipe.end(interlock.ErrExpired)
	}
}

// serves reports whether an answer came from the session's own server process,
// and ends the session if not.
func (s *session) serves(a answer) bool {
	process := a.process
	if len(a.rows) > 0 {
		process = a.rows[0][0]
	}
	if a.err != nil || len(process) == 0 || string(process) == s.pid {
		return true
	}
	s.pipe.end(&PoolerError{Want: s.pid, Got: string(process)})
	return false
}

// Close ends every goroutine. If the session holds locks, the server ends it after the TTL.
func (d *Driver) Close(ctx context.Context) error {
	d.mu.Lock()
	first := !d.closed
	d.closed = true
	s := d.session
	held := false
	for _, r := range d.requests {
		held = held || r.claim != nil
		r.close()
	}
	for w := range d.watchers {
		w.names.Wake()
	}
	d.mu.Unlock()
	if first {
		d.stop()
		if s != nil {
			d.leaveSession(ctx, s, held)
		}
	}
	if err := join.Wait(ctx, d.loops.Wait); err != nil {
		return problem("close", "", interlock.Retryable, err)
	}
	return nil
}

// leaveSession ends the session, or leaves it to the server if it holds locks.
func (d *Driver) leaveSession(ctx context.Context, s *session, held bool) {
	if !held {
		s.pipe.end(interlock.ErrClosed)
		return
	}
	gone := make(chan struct{})
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), min(time.Second, d.ttl/3))
	defer cancel()
	err := s.pipe.send(&call{steps: []step{{stDepart, []string{number(s.id)}}}, done: func(answer) { close(gone) }})
	if err == nil {
		select {
		case <-gone:
		case <-ctx.Done():
		}
	}
	conn := s.pipe.detach(interlock.ErrClosed)
	time.AfterFunc(d.ttl+time.Second, func() { conn.Close() })
}

// maintain sends pings, tries for waiters without a notification, and ends a session that
// does not answer.
func (d *Driver) maintain() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-d.life.Done():
			return
		case <-d.changed:
		case <-timer.C:
		}
		now := boottime.Now()
		timer.Reset(max(time.Millisecond, d.tick(now).Sub(now)))
	}
}

// tick runs what is due, and returns when to call it again.
func (d *Driver) tick(now boottime.Instant) boottime.Instant {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.looksAt = now.Add(time.Hour)
	s := d.session
	if s == nil || d.closed {
		return d.looksAt
	}
	giveUp := d.deadline(s, now)
	if giveUp <= now {
		s.pipe.end(errNoAnswer)
		return d.looksAt
	}
	if now >= s.pinged.Add(d.ttl/3) {
		d.ping(s, now)
	}
	d.perform(s, d.table.tick(now))
	d.looksAt = min(d.looksAt, giveUp, s.pinged.Add(d.ttl/3), d.table.next())
	return d.looksAt
}

// reschedule wakes the goroutine of maintain if something is due before its next look. Every event of
// the machine ends with it.
func (d *Driver) reschedule(now boottime.Instant) {
	due := d.table.next()
	if d.table.held == 0 {
		due = min(due, now.Add(statementTimeout))
	}
	if due < d.looksAt {
		d.looksAt = due
		hints.Signal(d.changed)
	}
}

// deadline returns the end of the wait for the session's answer: while claims may be valid, and at
// most 5 s if there are none.
func (d *Driver) deadline(s *session, now boottime.Instant) boottime.Instant {
	until := now.Add(max(0, s.lease.RemainingAt(now)))
	if d.table.held > 0 {
		return until
	}
	since, waits := s.pipe.silent()
	if !waits {
		since = now
	}
	return min(until, since.Add(statementTimeout))
}

// ping keeps the session and its locks alive.
func (d *Driver) ping(s *session, now boottime.Instant) {
	if s.pending {
		d.renewed(now.Sub(s.pinged), problem("renew", "", interlock.Uncertain, errNoAnswer))
		s.pinged = now
		return
	}
	s.pinged, s.pending = now, true
	d.send(s, &call{steps: []step{{stPing, []string{number(s.id), milliseconds(d.ttl)}}}, done: func(a answer) {
		if a.over {
			return
		}
		d.checkAnswer(s, a)
		if !s.serves(a) {
			return
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		s.pending = false
		if a.err == nil && !s.lease.Renew(a.sent, d.ttl) {
			s.pipe.end(interlock.ErrExpired)
		}
		d.renewed(boottime.Now().Sub(a.sent), ofAnswer("renew", "", a))
	}})
}

// renewed reports a renewal to all holders.
func (d *Driver) renewed(took time.Duration, err error) {
	for _, r := range d.requests {
		if hook := r.Events.Renewed; r.claim != nil && hook != nil && !d.closed {
			hook(took, err)
		}
	}
}

// DefaultTTL is the default of Options.TTL.
const DefaultTTL = 30 * time.Second

// MinTTL and MaxTTL bound Options.TTL.
const (
	MinTTL = time.Second
	MaxTTL = 24 * time.Hour
)

// DefaultNamespace is the default of Options.Namespace.
const DefaultNamespace = "interlock"

// Options of a driver; nil and the zero value work.
type Options struct {
	// TTL is how long the server keeps claims after the last statement of their process; 0
	// means [DefaultTTL], otherwise [MinTTL] to [MaxTTL]. A statement is sent every third of
	// it.
	TTL time.Duration
	// Namespace is the prefix of tables, sequence and channels, and part of every lock's key;
	// empty means [DefaultNamespace]. It has at most 20 lower-case letters, digits and
	// underscores, with a letter first. Tables are found by the connection's search_path;
	// [Open] refuses another schema than that of existing sessions.
	Namespace string
	// Seed sets where tokens start, for a move or a repair.
	Seed driver.Seed
}

func (o *Options) withDefaults() (Options, error) {
	var options Options
	if o != nil {
		options = *o
	}
	options.TTL = cmp.Or(options.TTL, DefaultTTL)
	options.Namespace = cmp.Or(options.Namespace, DefaultNamespace)
	if err := leasetable.CheckOptions(options.TTL, MinTTL, MaxTTL, options.Namespace); err != nil {
		return options, err
	}
	return options, options.Seed.Validate()
}

// Key returns the number of a name's advisory lock. It is the first eight bytes of a SHA-256, as
// a big-endian signed integer. The hash is over "interlock", the namespace and the name, each
// but the last followed by a zero byte. A session that takes pg_advisory_lock(Key(…)) excludes a
// [Driver], and is excluded by it.
func Key(namespace, name string) int64 {
	sum := sha256.Sum256([]byte("interlock\x00" + namespace + "\x00" + name))
	return int64(binary.BigEndian.Uint64(sum[:8]))
}

// sessionClass is the first of the two numbers of a session's lock on its own id. Locks by two numbers
// do not conflict with those by one.
func sessionClass(namespace string) int32 { return int32(Key(namespace, "")) }

// schemaClass is the first of the two numbers of a session's lock on the schema of its tables.
func schemaClass(namespace string) int32 { return int32(Key(namespace, "") >> 32) }

// Schema returns the statements that create the tables of this package, which
// otherwise are created by whatever needs them first: those of session locks and
// of row locks of a namespace (empty means [DefaultNamespace]), of values, of keys, and the
// marks of prepared transactions. The namespace is trusted.
func Schema(namespace string) (statements []string) {
	if namespace == "" {
		namespace = DefaultNamespace
	}
	for text := range strings.SplitSeq(schema+tableSchema, ";") {
		if text = strings.TrimSpace(text); text != "" {
			statements = append(statements, strings.ReplaceAll(text, "{ns}", namespace))
		}
	}
	statements = append(statements, keyValuesSchema(namespace+"_kv", namespace+"_kv_revision")...)
	return append(statements, valuesSchema(namespace+"_value"), marksSchema(DefaultMarks))
}
