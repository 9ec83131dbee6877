package mysql

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	client "github.com/go-sql-driver/mysql"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
	"github.com/interlock-dev/interlock/internal/hints"
	"github.com/interlock-dev/interlock/internal/join"
	"github.com/interlock-dev/interlock/internal/leasetable"
)

// Driver is a fenced lock by GET_LOCK, with all locks on one connection. It is safe for concurrent
// use. It has one goroutine and those of one connection, whatever the number of locks.
type Driver struct {
	config     *client.Config
	options    Options
	guarantees interlock.Guarantees
	takeLocks  string // the statement, with the namespace

	life  context.Context // of the goroutine; ended by Close
	stop  context.CancelFunc
	loops sync.WaitGroup
	freed hints.Waiters
	work  chan struct{} // signalled when there are tasks
	ended chan struct{} // signalled when the server has closed a connection

	// Only the goroutine uses these.
	sweeps  leasetable.Schedule
	granted int // since the last sweep
	agenda  agenda
	bounds  [2]bound // the latest first

	mu       sync.Mutex
	queue    []*task
	closed   bool
	session  *session            // nil without one; only the goroutine changes it
	holdings map[string]*holding // by name
	former   map[string]former   // by owner: lost with a session and not released yet
}

var (
	_ driver.Fenced    = (*Driver)(nil)
	_ driver.Inspector = (*Driver)(nil)
	_ driver.Watcher   = (*Driver)(nil)
	_ driver.Breaker   = (*Driver)(nil)
)

// Open connects with a configuration like that of the user's pool (see ParseDSN of the client),
// creates missing tables, and computes the guarantees. The connection belongs to the driver. Open
// refuses a proxy that numbers connections itself, with a [*ProxyError], a read-only server, a node
// of a Galera cluster, MariaDB before 10.5, and MySQL.
func Open(ctx context.Context, config *client.Config, o *Options) (*Driver, error) {
	options, err := o.withDefaults()
	if err = leasetable.CheckOpening(ctx, fail, err, config != nil, "a configuration is required: see ParseDSN of github.com/go-sql-driver/mysql"); err != nil {
		return nil, err
	}
	d := &Driver{config: config.Clone(), options: options, takeLocks: options.sql(takeLocks), work: make(chan struct{}, 1), ended: make(chan struct{}, 1),
		sweeps: sweeps(), agenda: agenda{names: map[string]bool{}}, holdings: map[string]*holding{}, former: map[string]former{}}
	d.life, d.stop = context.WithCancel(context.Background())
	d.bounds = [2]bound{{end: func() {}}, {end: func() {}}}
	d.loops.Go(d.run)
	f, err := answerOf(ctx, d, "open", "", func(ctx context.Context) (facts, error) {
		s, err := d.connected(ctx)
		if err != nil {
			return facts{}, err
		}
		return s.facts, nil
	})
	if err != nil {
		return nil, errors.Join(err, d.Close(context.WithoutCancel(ctx)))
	}
	d.guarantees = leasetable.Session(string(fail), "counter in the server's memory, reserved on disk, drawn while the lock is held; "+
		"at least the server's microseconds since 2020 when a session opens", f.durable, options.TTL)
	d.guarantees.Wait = interlock.Poll
	d.guarantees.ExclusionSurvives = interlock.ServerClockJump // not Partition: only the server may see the connection end
	return d, nil
}

// Guarantees returns the guarantees, computed by Open.
func (d *Driver) Guarantees() interlock.Guarantees { return d.guarantees }

// run does the tasks, pings each third of the TTL, and removes old rows.
func (d *Driver) run() {
	timer := time.NewTimer(d.options.TTL)
	defer timer.Stop()
	for {
		select {
		case <-d.life.Done():
			d.leave()
			return
		case <-timer.C:
			d.ping()
			d.sweepRows()
		case <-d.ended:
			d.checkSession()
		case <-d.work:
			for tasks := d.next(); len(tasks) > 0; tasks = d.next() {
				d.perform(tasks)
				d.ping() // between tasks, too, if there are many
				d.sweepRows()
			}
		}
		timer.Reset(d.untilDue())
	}
}

// patience bounds the wait for the server: until the lease ends if there are claims, otherwise a
// third of the TTL, 1 s to 5 s.
func (d *Driver) patience() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.session == nil:
		return dialTimeout
	case len(d.holdings) > 0:
		return max(time.Millisecond, d.session.lease.Remaining())
	}
	return min(max(d.options.TTL/3, time.Second), 5*time.Second)
}

// bound is a context that ends after the patience.
type bound struct {
	ctx context.Context
	end context.CancelFunc
	at  boottime.Instant
}

// bounded returns a context that ends after the patience, or up to an eighth of it earlier.
// Successive tasks share two contexts: one for a session with claims, and one without.
func (d *Driver) bounded() context.Context {
	now, patience := boottime.Now(), d.patience()
	for _, b := range d.bounds {
		if left := b.at.Sub(now); left <= patience && left >= patience*7/8 {
			return b.ctx
		}
	}
	d.bounds[1].end()
	d.bounds[1] = d.bounds[0]
	b := &d.bounds[0]
	b.ctx, b.end = context.WithTimeoutCause(d.life, patience, errNoAnswer)
	b.at = now.Add(patience)
	return b.ctx
}

// connected returns the session, and opens one if there is none.
func (d *Driver) connected(ctx context.Context) (*session, error) {
	if d.checkSession(); d.session != nil {
		return d.session, nil
	}
	s, err := dial(ctx, d.config, d.options, &sockets{all: &d.loops, over: func() { hints.Signal(d.ended) }})
	if err != nil {
		return nil, opening(ctx, err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.session = s
	return s, nil
}

// checkSession ends a session that has ended or expired.
func (d *Driver) checkSession() {
	switch {
	case d.session == nil:
	case d.session.socket.ended():
		d.endSession(errClosedByServer)
	case d.session.lease.Remaining() <= 0:
		d.endSession(interlock.ErrExpired)
	}
}

var errClosedByServer = errors.New("the server closed the connection")

// statement sends a statement over the session. Every answer renews the session; any other
// error ends it.
func (d *Driver) statement(ctx context.Context, send func(*session) error) error {
	s, err := d.connected(ctx)
	if err != nil {
		return err
	}
	sent := boottime.Now()
	err = send(s)
	switch {
	case err != nil && !isAnswer(err):
		d.endSession(err)
	case !s.lease.Renew(sent, d.options.TTL):
		d.endSession(interlock.ErrExpired)
		if err == nil {
			err = problem("run statement", "", interlock.Uncertain, interlock.ErrSessionEnded)
		}
	}
	return err
}

// answerOf runs a task in the driver's goroutine, and returns its result.
func answerOf[T any](ctx context.Context, d *Driver, op, name string, do func(context.Context) (T, error)) (found T, err error) {
	results := make(chan T, 1) // the task may outlast this call
	err = d.ask(ctx, op, name, func(ctx context.Context) error {
		found, err := do(ctx)
		results <- found
		return err
	})
	if err != nil {
		return found, err
	}
	return <-results, nil
}

// onSession is answerOf for a task on the session.
func onSession[T any](ctx context.Context, d *Driver, op, name string, do func(context.Context, *session) (T, error)) (T, error) {
	return answerOf(ctx, d, op, name, func(ctx context.Context) (found T, err error) {
		err = d.statement(ctx, func(s *session) (err error) {
			found, err = do(ctx, s)
			return err
		})
		return found, err
	})
}

// endSession ends the session: every claim on it is lost.
func (d *Driver) endSession(cause error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.session
	if s == nil || d.closed {
		return // after Close, held locks expire
	}
	d.session = nil
	ranOut := s.lease.Remaining() <= 0
	s.lease.End()
	for name, h := range d.holdings {
		h.lost(ranOut, problem("renew", name, interlock.Definite, fmt.Errorf("%w: %w", interlock.ErrSessionEnded, cause)))
		d.former[h.Owner] = former{lock: h.lock, id: s.id}
		d.freed.Wake(name)
	}
	clear(d.holdings)
	s.close()
}

// ping keeps the session and its locks alive. It is sent each third of the TTL even if other
// statements are, since it also checks that the server is still writable.
func (d *Driver) ping() {
	if d.session == nil || d.untilPing() > 0 {
		return
	}
	ctx, cancel := context.WithTimeoutCause(d.life, d.patience(), errNoAnswer)
	defer cancel()
	sent := boottime.Now()
	d.session.checked = sent
	err := d.statement(ctx, func(s *session) error { return s.check(ctx) })
	if err != nil {
		err = ofRead(ctx, "renew", "", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, h := range d.holdings {
		if hook := h.Events.Renewed; hook != nil && !h.quiet && !d.closed {
			hook(boottime.Now().Sub(sent), err)
		}
	}
}

// untilPing returns the time until the next ping; 0 or less means that it is due.
func (d *Driver) untilPing() time.Duration {
	if d.session == nil {
		return time.Hour
	}
	return d.session.checked.Add(d.options.TTL / 3).Sub(boottime.Now())
}

// untilDue returns the time until the next ping or sweep.
func (d *Driver) untilDue() time.Duration {
	ping := d.untilPing()
	if d.session == nil {
		return ping
	}
	return max(0, min(ping, d.sweeps.Next.Sub(boottime.Now())))
}

// Close ends the goroutine. The server ends a session with locks after the TTL.
func (d *Driver) Close(ctx context.Context) error {
	d.mu.Lock()
	if !d.closed && d.session != nil && len(d.holdings) > 0 {
		d.session.socket.leave(d.options.TTL + 2*time.Second)
	}
	d.closed = true
	d.mu.Unlock()
	d.stop()
	if err := join.Wait(ctx, d.loops.Wait); err != nil {
		return problem("close", "", interlock.Retryable, err)
	}
	return nil
}

// leave answers the waiting tasks, and closes the session.
func (d *Driver) leave() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, t := range d.queue {
		t.done <- problem(t.op, t.name, interlock.Uncertain, interlock.ErrClosed)
	}
	d.queue = nil
	if d.session != nil {
		d.session.close()
	}
}

// DefaultTTL is the default of Options.TTL.
const DefaultTTL = 30 * time.Second

// MinTTL and MaxTTL bound Options.TTL.
const (
	MinTTL = time.Second
	MaxTTL = 24 * time.Hour
)

// DefaultPoll is the default of Options.Poll.
const DefaultPoll = 250 * time.Millisecond

// DefaultNamespace is the default of Options.Namespace.
const DefaultNamespace = "interlock"

// Options of a driver; nil and the zero value work.
type Options struct {
	// TTL is the lease duration of claims after the last request of their process; 0 means
	// [DefaultTTL], otherwise [MinTTL] to [MaxTTL]. Claims are renewed every third of it.
	TTL time.Duration
	// Poll bounds the time between two attempts of a waiter; 0 means [DefaultPoll], otherwise
	// 1 ms to the TTL. Intervals start shorter, and are random.
	Poll time.Duration
	// Namespace is the prefix of the table names and part of every lock name; empty means
	// [DefaultNamespace]. It has at most 20 lower-case letters, digits and underscores, and
	// starts with a letter. The tables are in the database of the connection.
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
	options.Poll = cmp.Or(options.Poll, min(DefaultPoll, options.TTL))
	options.Namespace = cmp.Or(options.Namespace, DefaultNamespace)
	if err := leasetable.CheckOptions(options.TTL, MinTTL, MaxTTL, options.Namespace); err != nil {
		return options, err
	}
	if options.Poll < time.Millisecond || options.Poll > options.TTL {
		return options, fmt.Errorf("a poll interval of %v is invalid: it must be 1ms to the TTL of %v", options.Poll, options.TTL)
	}
	return options, options.Seed.Validate()
}

// statementTimeout bounds one statement: a third of the TTL, 1 s to 10 s.
func (o Options) statementTimeout() time.Duration {
	return min(max(o.TTL/3, time.Second), 10*time.Second)
}

// sql replaces the placeholders of the namespace and the server's clock in a statement.
func (o Options) sql(text string) string {
	return strings.NewReplacer("{ns}", o.Namespace, "{now}", "utc_timestamp(6)",
		"{floor}", "(timestampdiff(microsecond, '2020-01-01', utc_timestamp(6)))",
		"{most}", strconv.Itoa(mostReserved), "{limit}", fraction(o.statementTimeout())).Replace(text)
}

// Schema returns the statements that create the tables of this package, which otherwise are created at
// their first use: those of session locks and row locks of a namespace (empty means
// [DefaultNamespace]), of its [KeyValues], and of the marks of prepared transactions. The namespace is
// trusted.
func Schema(namespace string) (statements []string) {
	if namespace == "" {
		namespace = DefaultNamespace
	}
	for _, text := range slices.Concat(sessionSchema, tableSchema) {
		statements = append(statements, strings.ReplaceAll(text, "{ns}", namespace))
	}
	return append(statements, NewKeyValues(nil, namespace+"_kv").sql(keyValuesSchema), marksSchema(DefaultMarks))
}
