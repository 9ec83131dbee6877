package mysql

import (
	"context"
	"database/sql"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
	"github.com/interlock-dev/interlock/internal/backoff"
)

// Table is a fenced lock by rows with a lease, on the user's own database/sql
// pool. It works behind poolers in any mode. It is safe for concurrent use, and
// keeps one goroutine, and one for each statement under way.
type Table struct {
	db         *sql.DB
	options    Options
	guarantees interlock.Guarantees

	life  context.Context // of the goroutine; ended by Close
	stop  context.CancelFunc
	loops sync.WaitGroup
	calls *calls
	held  *keeper
	freed *bell

	mu      sync.Mutex
	missing bool // the tables may not be there
}

var (
	_ driver.Fenced    = (*Table)(nil)
	_ driver.Inspector = (*Table)(nil)
	_ driver.Watcher   = (*Table)(nil)
	_ driver.Breaker   = (*Table)(nil)
)

// tableSchema: a row stays when its lock is released, because it keeps the
// counter. The row of {ns}_lease_swept is the highest counter of the rows that
// were removed.
var tableSchema = []string{
	`create table if not exists {ns}_lease (
		name varbinary(512) not null primary key,
		owner varbinary(512) not null,
		counter bigint not null,
		since datetime(6) not null,
		expires datetime(6) not null) engine = InnoDB`,
	`create table if not exists {ns}_lease_swept (
		id int not null primary key,
		counter bigint not null) engine = InnoDB`,
	`create table if not exists {ns}_lease_break ` + breakColumns,
}

const breakColumns = `(
		id bigint not null auto_increment primary key,
		name varbinary(512) not null,
		owner varbinary(512) not null,
		reason varbinary(512) not null,
		who varbinary(512) not null,
		counter bigint not null,
		at datetime(6) not null,
		request char(26) character set latin1,
		connection bigint,
		key (name, id)) engine = InnoDB`

// OpenTable makes the tables if they are missing, and computes the guarantees.
// The pool stays the caller's, who closes it after the Table. With
// interpolateParams=true in its DSN each statement costs one round trip, and
// without it two. It takes 10 s at most, or until ctx ends.
func OpenTable(ctx context.Context, db *sql.DB, o *Options) (*Table, error) {
	options, err := o.orDefault()
	if err == nil && db == nil {
		err = errors.New("a pool is needed")
	}
	if err != nil {
		return nil, problem("open", "", interlock.Bug, err)
	}
	t := &Table{db: db, options: options, freed: newBell(), missing: true,
		calls: &calls{limit: dialTimeout, last: map[string]chan struct{}{}}}
	t.life, t.stop = context.WithCancel(context.Background())
	t.held = newKeeper(t)
	var f facts
	err = t.calls.do(ctx, "open", "", "", func(ctx context.Context) (err error) {
		if f, err = ask(ctx, db); err == nil {
			err = f.refusal()
		}
		if err != nil {
			return opening(ctx, err)
		}
		if err := t.ready(ctx); err != nil {
			return err
		}
		if err := tableCounters.seed(ctx, t.db, t.options); err != nil {
			return opening(ctx, err)
		}
		return nil
	})
	if err != nil {
		t.stop()
		return nil, err
	}
	t.calls.limit = options.statementTimeout()
	t.guarantees = tableGuarantees(f, options.TTL)
	t.loops.Go(t.held.run)
	return t, nil
}

// opening gives an error of Open its kind: nothing was changed.
func opening(ctx context.Context, err error) error {
	kind := kindOf(inBegin, err, false)
	if ctx.Err() == nil && !fromDatabase(err) {
		kind = interlock.Definite // a refusal
	}
	return problem("open", "", kind, explained(ctx, err))
}

func tableGuarantees(f facts, ttl time.Duration) interlock.Guarantees {
	g := interlock.Guarantees{
		Driver: "mysql table", Class: interlock.Fenced,
		TokenFrom: "counter in the name's row, at least the server's microseconds since 2020",
		Liveness:  interlock.ServerTTL, Clock: interlock.ServerClock,
		Order: interlock.Barging, Wait: interlock.Poll,
		CrossProcess: true,
		TokensSurvive: interlock.HolderPause | interlock.Partition | interlock.DataLoss |
			interlock.ServerClockJump | interlock.OperatorDelete,
		ExclusionSurvives: interlock.Partition,
		TTL:               ttl, Blind: ttl, MinTTL: MinTTL, MaxTTL: MaxTTL,
	}
	if f.durable {
		g.TokensSurvive |= interlock.ServerCrash
		g.ExclusionSurvives |= interlock.ServerCrash
	}
	return g
}

// Guarantees says what is promised, as computed when the Table opened.
func (t *Table) Guarantees() interlock.Guarantees { return t.guarantees }

// ready makes the tables, if they were not there when they were last used.
func (t *Table) ready(ctx context.Context) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.missing {
		return nil
	}
	err := create(ctx, t.db, t.options, tableSchema, "{ns}_lease", "{ns}_lease_swept", "{ns}_lease_break")
	t.missing = err != nil
	return err
}

// run runs statements of ours for owner, and makes the tables again if they were
// gone.
func (t *Table) run(ctx context.Context, op, name, owner string, send func(context.Context) error) error {
	return t.calls.do(ctx, op, name, owner, func(ctx context.Context) error {
		if err := t.ready(ctx); err != nil {
			return err
		}
		err := send(ctx)
		if isNumber(err, noTable) {
			t.mu.Lock()
			t.missing = true
			t.mu.Unlock()
			return problem(op, name, interlock.Retryable, err)
		}
		return err
	})
}

// lockRow: name, owner, TTL in µs. An assignment may see those before it, or, as
// sql_mode may say, none: each holds either way. The clock is read when the
// statement begins, so that whoever waits for the row gets less than a TTL. The
// server ends the statement in time, lest it comes to its turn when nobody waits
// for the answer.
const lockRow = `set statement max_statement_time = {limit} for
insert into {ns}_lease (name, owner, counter, since, expires)
values (?, ?, greatest({floor}, 1 + coalesce((select counter from {ns}_lease_swept where id = 1), 0)), {now}, {now} + interval ? microsecond)
on duplicate key update
	counter = if(expires <= {now}, greatest(counter + 1, {floor}), counter),
	since = if(expires <= {now}, values(since), since),
	owner = if(expires <= {now}, values(owner), owner),
	expires = if(expires <= {now} or owner = values(owner), values(expires), expires)
returning owner, counter, timestampdiff(microsecond, '2020-01-01', since), timestampdiff(microsecond, {now}, expires)`

// freeRow: name, owner. Nobody is an empty text in hexadecimal digits, which no
// sql_mode makes NULL.
const freeRow = `set statement max_statement_time = {limit} for
update {ns}_lease set owner = x'', expires = {now} where name = ? and owner = ?`

// answer is what lockRow tells.
type answer struct {
	owner   []byte
	counter int64
	since   int64 // µs since 2020
	left    int64 // µs
}

// Acquire waits until r.Owner holds r.Name; see driver.Fenced.
func (t *Table) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if err := named("acquire", r.Name, r.Owner); err != nil {
		return driver.Grant{}, err
	}
	t.held.hush(r.Owner)
	woken, leave := t.freed.enter(r.Name)
	defer leave()
	for refusals := 1; ; refusals++ {
		sent, a, err := t.try(ctx, r)
		left := time.Duration(a.left) * time.Microsecond
		switch {
		case err != nil:
			return driver.Grant{}, err
		case string(a.owner) == r.Owner:
			if err := implausible(r.Name, a.counter, a.since); err != nil {
				return driver.Grant{}, err
			}
			return t.granted(r, sent, a.counter)
		case r.NoWait:
			return driver.Grant{}, &interlock.HeldError{Name: r.Name, Owner: string(a.owner),
				Since: serverTime(a.since), Until: time.Now().Add(left)}
		case refusals == 1 && r.Events.Waiting != nil:
			r.Events.Waiting(driver.Place{Ahead: -1, Holder: string(a.owner)})
		}
		if err := t.pause(ctx, r.Name, woken, min(t.options.interval(refusals), left+5*time.Millisecond)); err != nil {
			return driver.Grant{}, err
		}
	}
}

// interval is the time to the next try.
func (o Options) interval(refusals int) time.Duration {
	return backoff.Policy{First: min(20*time.Millisecond, o.Poll), Max: o.Poll}.Delay(refusals, rand.Float64())
}

func (t *Table) try(ctx context.Context, r driver.Request) (sent boottime.Instant, a answer, err error) {
	type result struct {
		sent boottime.Instant
		answer
	}
	results := make(chan result, 1) // the statement may outlast this call
	err = t.run(ctx, "acquire", r.Name, r.Owner, func(ctx context.Context) error {
		var now result
		now.sent = boottime.Now()
		err := one(ctx, t.db, t.options.sql(lockRow), []any{[]byte(r.Name), []byte(r.Owner), r.Lease(t.options.TTL).Microseconds()},
			&now.owner, &now.counter, &now.since, &now.left)
		results <- now
		return err
	})
	if err != nil {
		return 0, answer{}, err
	}
	now := <-results
	return now.sent, now.answer, nil
}

// granted begins to keep what was asked for at sent.
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

func (t *Table) pause(ctx context.Context, name string, woken <-chan struct{}, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-woken:
	case <-timer.C:
	case <-t.life.Done():
		return problem("acquire", name, interlock.Uncertain, interlock.ErrClosed)
	case <-ctx.Done():
		return unanswered(ctx, "acquire", name)
	}
	return nil
}

// Release gives up whatever owner has on name; see driver.Fenced.
func (t *Table) Release(ctx context.Context, name, owner string) error {
	if err := named("release", name, owner); err != nil {
		return err
	}
	t.held.remove(owner)
	defer t.freed.ring(name)
	return t.run(ctx, "release", name, owner, func(ctx context.Context) error {
		_, err := t.db.ExecContext(ctx, t.options.sql(freeRow), []byte(name), []byte(owner))
		return err
	})
}

// Close stops renewing and waits for what is under way. What is held is left to
// expire.
func (t *Table) Close(ctx context.Context) error {
	t.calls.close()
	t.stop()
	return t.calls.wait(ctx, &t.loops)
}
