package postgres

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
)

// TableOptions of a [Table]; nil and the zero value work.
type TableOptions struct {
	// TTL is how long a claim lives without renewal, by the server's clock; 0
	// means [DefaultTTL], otherwise [MinTTL] to [MaxTTL]. Claims are renewed
	// every third of it.
	TTL time.Duration
	// Namespace is as in [Options].
	Namespace string
	// Seed says where tokens start, for a move or a repair.
	Seed driver.Seed
}

// Table is a fenced lock by rows with a lease, on the user's own pool. It works
// behind poolers in any mode, and keeps one goroutine and, where the server can be
// reached without a pooler, another with a connection to listen on. It is safe
// for concurrent use.
type Table struct {
	pool       *pgxpool.Pool
	namespace  string
	ttl        time.Duration
	guarantees interlock.Guarantees

	life  context.Context
	stop  context.CancelFunc
	loops sync.WaitGroup

	held   *keeper
	wakes  *bell // a name may be free
	listen *listener

	mu      sync.Mutex
	missing bool // the tables may not be there
}

var (
	_ driver.Fenced    = (*Table)(nil)
	_ driver.Inspector = (*Table)(nil)
	_ driver.Watcher   = (*Table)(nil)
	_ driver.Breaker   = (*Table)(nil)
)

const tableSchema = `
create table if not exists {ns}_lease (
	name text collate "C" primary key,
	owner text collate "C",
	counter bigint not null,
	since timestamptz not null,
	expires timestamptz not null,
	awaited timestamptz
);
create table if not exists {ns}_lease_break (
	id bigint generated always as identity primary key,
	name text collate "C" not null,
	owner text not null,
	reason text not null,
	who text not null,
	counter bigint not null,
	at timestamptz not null default clock_timestamp()
);
create index if not exists {ns}_lease_break_name on {ns}_lease_break (name, id);`

// OpenTable makes the tables if they are missing, and computes the guarantees.
// The pool stays the caller's, who closes it after the Table. Everything is one
// statement a time without a prepared one, so that any pooler may stand between;
// only the making of the tables needs a transaction. A Table and a [Driver] do not
// exclude each other: all who share names use one of the two.
func OpenTable(ctx context.Context, pool *pgxpool.Pool, o *TableOptions) (*Table, error) {
	var options Options
	if o != nil {
		options = Options{TTL: o.TTL, Namespace: o.Namespace, Seed: o.Seed}
	}
	options, err := options.orDefault()
	if err == nil && pool == nil {
		err = errors.New("a pool is needed")
	}
	if err != nil {
		return nil, problem("open", "", interlock.Bug, err)
	}
	if ctx.Err() != nil {
		return nil, unsent("open", "", ctx)
	}
	t := &Table{pool: pool, namespace: options.Namespace, ttl: options.TTL, wakes: newBell(), missing: true}
	t.life, t.stop = context.WithCancel(context.Background())
	t.held = newKeeper(t)
	if err := t.open(ctx, options.Seed); err != nil {
		t.stop()
		return nil, err
	}
	t.loops.Go(t.held.run)
	if t.listen != nil {
		t.loops.Go(t.listen.run)
	}
	return t, nil
}

func (t *Table) open(ctx context.Context, seed driver.Seed) error {
	if err := t.ready(ctx, "open", ""); err != nil {
		return err
	}
	var f facts
	direct := false
	err := t.pool.AcquireFunc(ctx, func(c *pgxpool.Conn) (err error) {
		if f, err = ask(ctx, c.Conn()); err != nil {
			return err
		}
		if err := t.seed(ctx, c.Conn(), seed); err != nil {
			return err
		}
		direct, err = isDirect(ctx, c.Conn())
		return err
	})
	if err != nil {
		return t.failed(ctx, "open", "", err, true)
	}
	if direct {
		t.listen = &listener{config: t.pool.Config().ConnConfig, channel: t.namespace + "_free", life: t.life, heard: t.wakes}
	}
	t.guarantees = tableGuarantees(f, direct, t.ttl)
	return nil
}

// isDirect reports whether the server process is the one that the connection
// was made with. A pooler tells a number of its own.
func isDirect(ctx context.Context, c *pgx.Conn) (bool, error) {
	var pid uint32
	err := c.QueryRow(ctx, `select pg_backend_pid()`, pgx.QueryExecModeExec).Scan(&pid)
	return pid == c.PgConn().PID(), err
}

func tableGuarantees(f facts, pushed bool, ttl time.Duration) interlock.Guarantees {
	g := interlock.Guarantees{
		Driver: "postgres table", Class: interlock.Fenced,
		TokenFrom: "counter in the name's row, at least the server's microseconds since 2020",
		Liveness:  interlock.ServerTTL, Clock: interlock.ServerClock,
		Order: interlock.Barging, Wait: interlock.Poll,
		CrossProcess: true,
		TokensSurvive: interlock.HolderPause | interlock.Partition | interlock.DataLoss |
			interlock.ServerClockJump | interlock.OperatorDelete,
		ExclusionSurvives: interlock.Partition,
		TTL:               ttl, Blind: ttl, MinTTL: MinTTL, MaxTTL: MaxTTL,
	}
	if pushed {
		g.Wait = interlock.Push
	}
	if f.durable && f.synchronous {
		g.TokensSurvive |= interlock.ServerCrash
		g.ExclusionSurvives |= interlock.ServerCrash
	}
	return g
}

// Guarantees says what is promised, as computed when the Table opened.
func (t *Table) Guarantees() interlock.Guarantees { return t.guarantees }

func (t *Table) sql(text string) string { return strings.ReplaceAll(text, "{ns}", t.namespace) }

// statementTimeout bounds one statement where the caller does not.
func (t *Table) statementTimeout() time.Duration {
	return min(max(t.ttl/3, time.Second), 10*time.Second)
}

// rows runs one statement, in a transaction of its own.
func (t *Table) rows(ctx context.Context, op, name string, each func(pgx.Rows) error, text string, args ...any) error {
	switch {
	case t.life.Err() != nil:
		return closedError(op, name)
	case ctx.Err() != nil:
		return unsent(op, name, ctx)
	}
	if err := t.ready(ctx, op, name); err != nil {
		return err
	}
	bounded, cancel := context.WithTimeoutCause(ctx, t.statementTimeout(), errNoWord)
	defer cancel()
	rows, err := t.pool.Query(bounded, t.sql(text), append([]any{pgx.QueryExecModeExec}, args...)...)
	for err == nil && rows.Next() {
		err = each(rows)
	}
	if rows != nil {
		rows.Close()
		err = errors.Join(err, rows.Err())
	}
	return t.failed(bounded, op, name, err, false)
}

// ready makes the tables, if they were not there when they were last used.
func (t *Table) ready(ctx context.Context, op, name string) error {
	t.mu.Lock()
	missing := t.missing
	t.mu.Unlock()
	if !missing {
		return nil
	}
	bounded, cancel := context.WithTimeoutCause(ctx, dialTimeout, errNoWord)
	defer cancel()
	err := t.create(bounded)
	if err != nil {
		return t.failed(bounded, op, name, err, true)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.missing = false
	return nil
}

func (t *Table) create(ctx context.Context) error {
	there := false
	err := t.pool.QueryRow(ctx, t.sql(`select to_regclass('{ns}_lease') is not null and to_regclass('{ns}_lease_break') is not null`),
		pgx.QueryExecModeExec).Scan(&there)
	if err != nil || there {
		return err
	}
	return pgx.BeginFunc(ctx, t.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `select pg_advisory_xact_lock($1)`, pgx.QueryExecModeExec, Key(t.namespace, "")); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, t.sql(tableSchema), pgx.QueryExecModeSimpleProtocol)
		return err
	})
}

// failed gives an error its kind. A statement is a transaction of its own, so
// that what the server refused was not done, and what it did not answer may
// have been. before says that nothing was sent that matters.
func (t *Table) failed(ctx context.Context, op, name string, err error, before bool) error {
	if err == nil {
		return nil
	}
	var known interface{ ErrorKind() interlock.ErrorKind }
	var native *pgconn.PgError
	var dial *pgconn.ConnectError
	kind := interlock.Uncertain
	switch {
	case errors.As(err, &known):
		kind = known.ErrorKind()
	case errors.As(err, &native):
		kind = kindOfAnswer(inCommit, native)
		if native.Code == undefinedTable { // the data is gone
			t.mu.Lock()
			t.missing = true
			t.mu.Unlock()
			kind = interlock.Retryable
		}
	case errors.As(err, &dial):
		kind = interlock.Retryable
	}
	if before && kind == interlock.Uncertain {
		kind = interlock.Retryable
	}
	return problem(op, name, kind, driver.WithCause(ctx, err))
}

// Close stops renewing and ends every goroutine. What is held is left to expire.
func (t *Table) Close(ctx context.Context) error {
	t.stop()
	done := make(chan struct{})
	go func() {
		t.loops.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return problem("close", "", interlock.Retryable, context.Cause(ctx))
	}
}

// granted starts to keep the lease that was asked for at sent.
func (t *Table) granted(r driver.Request, sent boottime.Instant, counter int64) (driver.Grant, error) {
	token, err := interlock.NewToken(counter, 0)
	if err != nil {
		return driver.Grant{}, err
	}
	lease, err := t.held.add(r, sent)
	if err != nil {
		return driver.Grant{}, err
	}
	return driver.Grant{Lease: lease, Token: token}, nil
}

// bell wakes whoever waits for a name.
type bell struct {
	mu      sync.Mutex
	waiting map[string]map[chan struct{}]bool
}

func newBell() *bell { return &bell{waiting: map[string]map[chan struct{}]bool{}} }

func (b *bell) enter(name string) (woken chan struct{}, leave func()) {
	woken = make(chan struct{}, 1)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.waiting[name] == nil {
		b.waiting[name] = map[chan struct{}]bool{}
	}
	b.waiting[name][woken] = true
	return woken, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.waiting[name], woken)
		if len(b.waiting[name]) == 0 {
			delete(b.waiting, name)
		}
	}
}

// ring wakes those who wait for name, and everyone if it is empty.
func (b *bell) ring(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for n, all := range b.waiting {
		if name == "" || n == name {
			for woken := range all {
				signal(woken)
			}
		}
	}
}
