package mysql

import (
	"cmp"
	"context"
	"crypto/sha256"
	"database/sql"
	sqldriver "database/sql/driver"
	"encoding/base32"
	"errors"
	"fmt"
	"strings"
	"time"

	client "github.com/go-sql-driver/mysql"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver/boottime"
)

// LockName is the name by which a [Driver] takes GET_LOCK: "interlock." and 52 letters and
// digits. These are the SHA-256 of "interlock", the database, the namespace and the name, each
// but the last ended by a zero byte. The server knows no databases there, takes 64 characters at
// most and does not distinguish case. A session that takes GET_LOCK of it by hand excludes a
// Driver, and is excluded.
func LockName(database, namespace, name string) string {
	var room [256]byte
	text := append(append(append(room[:0], "interlock\x00"...), database...), 0)
	sum := sha256.Sum256(append(append(append(text, namespace...), 0), name...))
	const prefix = "interlock."
	var lock [len(prefix) + 52]byte
	lockDigits.Encode(lock[copy(lock[:], prefix):], sum[:])
	return string(lock[:])
}

var lockDigits = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// A ProxyError tells that the server's connection is not the one that was made:
// a proxy stands in between, which may give it to others. GET_LOCK is of no use
// then; [OpenTable] is. It is Definite.
type ProxyError struct {
	Want, Got int64 // numbers of connections
}

// Error says what to do.
func (e *ProxyError) Error() string {
	return fmt.Sprintf("connection %d was made, and connection %d of the server answers: there is a proxy between them, use OpenTable",
		e.Want, e.Got)
}

// ErrorKind is [interlock.Definite].
func (e *ProxyError) ErrorKind() interlock.ErrorKind { return interlock.Definite }

// session is one connection that carries every lock of a Driver. What it held is
// never revived when it ends. All of it belongs to the Driver's goroutine.
type session struct {
	db       *sql.DB
	conn     *sql.Conn
	socket   *socket
	id       int64
	database string
	facts    facts
	lease    *boottime.Lease
	checked  boottime.Instant // when it was last asked who it is

	above, reserved int64 // the counters between, and the last one, may be granted

	takeOne, dropOne sqldriver.Stmt // prepared: the server needs as long to parse them as to execute them

	text  []byte                  // of the last statement about locks
	args  [4]sqldriver.NamedValue // of the last prepared one, each in bytes
	value [1]sqldriver.Value      // of the last row
}

// dialTimeout bounds the opening of a session or a Table: a dozen statements, and tables may
// have to be made.
const dialTimeout = 10 * time.Second

// sessionSchema: a row of {ns}_holder has who took a lock last. It is in the server's memory, as the
// lock is, and draws the counter. The row of {ns}_holder_reserved has a counter that none is above.
var sessionSchema = []string{
	`create table if not exists {ns}_holder (
		name varbinary(512) not null,
		lock_name char(62) character set latin1 not null,
		owner varbinary(512) not null,
		counter bigint not null auto_increment,
		since datetime(6) not null,
		connection bigint not null,
		primary key (name) using btree,
		key (counter) using btree) engine = MEMORY`,
	`create table if not exists {ns}_holder_reserved (
		id int not null primary key,
		counter bigint not null) engine = InnoDB`,
	`create table if not exists {ns}_break ` + breakColumns,
}

// dial makes a session.
func dial(ctx context.Context, config *client.Config, o Options, d *sockets) (_ *session, err error) {
	config = config.Clone()
	d.dial, config.DialFunc = config.DialFunc, d.DialContext
	config.InterpolateParams, config.CheckConnLiveness, config.RejectReadOnly = true, false, false
	config.ReadTimeout = 0              // statements have bounds of their own
	config.Logger = &client.NopLogger{} // errors are returned
	connector, err := client.NewConnector(config)
	if err != nil {
		return nil, err
	}
	s := &session{db: sql.OpenDB(connector)}
	s.db.SetMaxOpenConns(1)
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if s.conn, err = s.db.Conn(ctx); err != nil {
		return nil, err
	}
	s.socket = d.last
	if err := s.prepare(ctx, o); err != nil {
		return nil, err
	}
	sent := boottime.Now()
	if err := s.check(ctx); err != nil {
		return nil, err
	}
	s.lease, s.checked = boottime.NewLease(sent, o.TTL), sent
	return s, nil
}

// prepare makes the server end the session after the TTL, in whole seconds, without a statement.
// It also bounds how long a statement may run or wait for a lock.
func (s *session) prepare(ctx context.Context, o Options) (err error) {
	if s.facts, err = ask(ctx, s.conn); err != nil {
		return err
	}
	if err := s.facts.refusal(); err != nil {
		return err
	}
	if s.facts.galera {
		return errors.New("GET_LOCK is local to one node of a Galera cluster: use OpenTable")
	}
	if err := s.check(ctx); err != nil {
		return err
	}
	if err := one(ctx, s.conn, `select coalesce(database(), '')`, nil, &s.database); err != nil {
		return err
	}
	if s.database == "" {
		return errors.New("the configuration names no database for the tables")
	}
	ttl := int64((o.TTL + time.Second - 1) / time.Second)
	_, err = s.conn.ExecContext(ctx, fmt.Sprintf(`set session wait_timeout = %d, net_read_timeout = %d,
		idle_transaction_timeout = 0, innodb_lock_wait_timeout = 1, max_statement_time = %s, autocommit = 1, tx_isolation = 'REPEATABLE-READ',
		max_heap_table_size = 1073741824, optimizer_switch = 'condition_pushdown_for_derived=off,derived_merge=off',
		sql_mode = 'STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION'`, ttl, ttl, fraction(o.statementTimeout())))
	if err != nil {
		return err
	}
	if err := create(ctx, s.conn, o, sessionSchema, "{ns}_holder", "{ns}_holder_reserved", "{ns}_break"); err != nil {
		return err
	}
	if err := s.checkHolders(ctx, o); err != nil {
		return err
	}
	if err := sessionCounters.seed(ctx, s.conn, o); err != nil {
		return err
	}
	if err := s.raise(ctx, o); err != nil {
		return err
	}
	return s.conn.Raw(func(c any) (err error) {
		if s.takeOne, err = c.(sqldriver.ConnPrepareContext).PrepareContext(ctx, o.sql(takeOne)); err == nil {
			s.dropOne, err = c.(sqldriver.ConnPrepareContext).PrepareContext(ctx, dropOne)
		}
		return err
	})
}

// checkHolders refuses the table of a former version, in which programs of that version draw counters of
// their own.
func (s *session) checkHolders(ctx context.Context, o Options) error {
	draws := 0
	err := one(ctx, s.conn, o.sql(`select count(*) from information_schema.columns
where table_schema = database() and table_name = '{ns}_holder' and extra = 'auto_increment'`), nil, &draws)
	if err == nil && draws == 0 {
		err = errors.New(o.sql("the table {ns}_holder is of a former version, which draws other tokens: stop all programs of that version, then drop the table"))
	}
	return err
}

// check asks which connection of the server answers, and whether that is a
// primary still: locks are taken on its successor otherwise, while it keeps ours.
func (s *session) check(ctx context.Context) error {
	var id int64
	var readOnly bool
	err := one(ctx, s.conn, `select connection_id(), `+readOnlyNow, nil, &id, &readOnly)
	switch {
	case err != nil:
		return err
	case readOnly:
		return errReadOnly
	}
	return s.sameAs(id)
}

var errReadOnly = errors.New("the server is read-only, as replicas are")

func (s *session) sameAs(id int64) error {
	if s.id == 0 && uint32(id) == s.socket.number() { // the server begins with the lower half
		s.id = id
	}
	if id != s.id {
		return &ProxyError{Want: cmp.Or(s.id, int64(s.socket.number())), Got: id}
	}
	return nil
}

func (s *session) lockName(o Options, name string) string {
	return LockName(s.database, o.Namespace, name)
}

// takeLocks takes locks and draws their counters, in one statement: a row is written only after
// GET_LOCK, which does not wait, was granted. All before us have drawn from the same table while
// they held it. The session does not push conditions down, so that each lock is asked for once.
// {locks} are names, locks and owners.
const takeLocks = insertHolder + `
select w.name, w.lock_name, w.owner, {now}, connection_id()
from (select '' as name, '' as lock_name, '' as owner where false union all values {locks}) w
where get_lock(w.lock_name, 0) = 1` + drawnRow

// takeOne is takeLocks for one: the name and the owner in hexadecimal digits, and the lock
// before and after the owner.
const takeOne = insertHolder + ` select unhex(?), ?, unhex(?), {now}, connection_id() from dual where get_lock(?, 0) = 1` + drawnRow

const (
	insertHolder = `replace into {ns}_holder (name, lock_name, owner, since, connection)`
	drawnRow     = `
returning concat_ws(' ', connection, counter, timestampdiff(microsecond, '2020-01-01', since), name) as ''`
)

// mostReserved is how many counters a session reserves at once, or more if the clock is above them.
const mostReserved = 1000

// reserve has a drawn counter, or 0, as its parameters. Each session changes the row itself: what it
// reads of another one might not be on disk yet.
const reserve = `insert into {ns}_holder_reserved (id, counter) values (1, greatest(?, {floor}) + {most})
on duplicate key update counter = greatest(counter + {most}, values(counter)) returning counter`

// raiseCounter has a counter as its parameter, above which the next ones are drawn. No lock has the
// name and the connection of the row.
const raiseCounter = `insert into {ns}_holder (name, lock_name, owner, counter, since, connection)
values ('', 'interlock', '', ?, {now}, 0) on duplicate key update counter = greatest(counter, values(counter))`

// reserve makes durable that counters were drawn up to one at least.
func (s *session) reserve(ctx context.Context, o Options, drawn int64) error {
	return one(ctx, s.conn, o.sql(reserve), []any{drawn}, &s.reserved)
}

// raise raises the counter to all that were reserved, which the server forgets when it restarts, and
// to the clock.
func (s *session) raise(ctx context.Context, o Options) error {
	err := s.reserve(ctx, o, 0)
	if err == nil {
		s.above = s.reserved - mostReserved
		_, err = s.conn.ExecContext(ctx, o.sql(raiseCounter), s.above)
	}
	return err
}

// cover reserves the counters that were drawn for tasks. A counter that an operator has reset, with
// the table, is raised again, and no lock is granted.
func (s *session) cover(ctx context.Context, o Options, tasks []*task) error {
	lowest, highest := s.reserved, int64(0)
	for _, t := range tasks {
		if t.counter != 0 && implausible(t.name, t.counter, t.clock) == nil {
			lowest, highest = min(lowest, t.counter), max(highest, t.counter)
		}
	}
	switch {
	case lowest <= s.above:
		return cmp.Or(s.raise(ctx, o), errReset)
	case highest > s.reserved:
		return s.reserve(ctx, o, highest)
	}
	return nil
}

// errReset is an answer after which the session can continue.
var errReset = problem("acquire", "", interlock.Retryable, errors.New("the counter was reset, and is raised again"))

const (
	dropLocks = `select concat_ws(' ', connection_id(){locks}) as ''`
	dropOne   = `select concat_ws(' ', connection_id(), release_lock(?)) as ''`
	whoHolds  = `select owner, timestampdiff(microsecond, '2020-01-01', since) from {ns}_holder
where name = ? and connection = is_used_lock(lock_name)`
)

// statement is text with what write adds in the place of {locks}.
func (s *session) statement(text string, write func([]byte) []byte) string {
	head, tail, _ := strings.Cut(text, "{locks}")
	s.text = append(write(append(s.text[:0], head...)), tail...)
	return string(s.text)
}

// close ends the session, and releases what it holds.
func (s *session) close() {
	if s.conn != nil {
		s.conn.Close()
	}
	s.db.Close()
}
