package mysql

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/internal/prepared"
)

// DefaultMarks is the default of ParticipantOptions.Marks.
const DefaultMarks = "interlock_committed"

// ParticipantOptions of a [Participant]; nil and the zero value work.
type ParticipantOptions struct {
	// Marks is the table, or database.table, of the marks of committed branches; empty means
	// [DefaultMarks] in the database of the connection. Namespaces may share it. It is trusted:
	// never take it from a request.
	Marks string
	// Keep bounds how long the session of a prepared branch waits for a Commit or Rollback of
	// this Participant. During this time no other process can finish the branch, and the
	// connection is missing in the pool. 0 means [DefaultKeep]; below 0 sessions are closed at
	// once, and each branch costs several more requests. Use one value in all processes: a
	// process that finishes the branch of another one ends a session that has been idle for 3
	// seconds longer than its own Keep.
	Keep time.Duration
}

// DefaultKeep is the default of ParticipantOptions.Keep.
const DefaultKeep = 2 * time.Second

// Participant prepares branches of distributed transactions on one MariaDB server by
// XA, and finishes and lists those of its namespace. It never ends a prepared branch by
// itself: a branch in doubt keeps its locks until Commit or Rollback. Between the commits of
// two branches, others can read a part of the transaction. Tables of an engine without
// transactions, such as Aria, keep the changes of a branch that was rolled back.
//
//	p, err := mysql.OpenParticipant(ctx, db, "shop", nil)
//	defer p.Close()
//	conn, branch, err := p.Begin(ctx, x)
//	…                                                 // work in conn, or in mysql.Session(conn)
//	vote, err := branch.Prepare(ctx)
//	err = p.Commit(ctx, x)                            // from any process
//
// A branch inserts its mark in its own transaction, so the mark exists if and only if the
// branch was committed: it records the outcome after the server has forgotten the branch.
// A Rollback of a branch that is not prepared inserts a mark too, so that a late Prepare
// fails. [Participant.Forget] removes marks.
//
// MariaDB binds a prepared branch to its session, and others can finish it only after the
// session has ended. A Participant therefore keeps the session for a while, to finish the
// branch in it. Another process that finishes a branch first checks that its session has ended,
// or ends it if its process is stopped or disconnected. For that it must be the same user; with
// the privilege PROCESS it sees the sessions of other users, and with CONNECTION ADMIN it can end
// them. Then it waits until the storage engine has detached the branch: just after the end of a
// session, the server answers XA COMMIT with success and does nothing. Without PROCESS it cannot
// see that and waits for 0.5 seconds. Afterwards it checks the mark.
//
// A branch in which the server counts no written row has changed nothing, and is rolled back
// with VoteReadOnly: its locks are released before the others commit. A Participant is safe for
// concurrent use, and must be closed.
//
// MySQL is refused. It detaches branches from their sessions only since 8.0.29, and lists them
// only for users with XA_RECOVER_ADMIN. It has lost prepared ones in crashes and on replicas;
// see docs/adr/010-mysql.md.
type Participant struct {
	space prepared.Space
	db    *sql.DB
	slots prepared.Slots
	keep  time.Duration
	pause func(context.Context, time.Duration) bool

	mu   sync.Mutex
	kept map[driver.XID]*branch // prepared, with their sessions; nil after Close
}

var _ driver.Preparer[*sql.Conn] = (*Participant)(nil)

// OpenParticipant creates the table of marks if it is missing. It refuses a server on which prepared
// branches are not safe: MySQL, MariaDB before 10.5, a node of a Galera cluster, a read-only server,
// one with replication filters. It refuses a pool whose sessions have autocommit off, too.
//
// Only the coordinators of one journal may share a namespace: a coordinator with another journal
// would roll back branches that they decided to commit. A namespace is unique in the server, whatever
// the database, and does not change: 1 to driver.MaxXIDNamespace letters, digits, - and _. The caller
// closes the pool.
//
// Set the bound of the pool, if any, before the call. Branches occupy at most seven eighths of
// it, and leave at least one connection of a pool of two or more: Commit and Rollback may need
// one while branches wait for connections. Begin waits for a free one until its context ends.
func OpenParticipant(ctx context.Context, db *sql.DB, namespace string, o *ParticipantOptions) (*Participant, error) {
	const op = "open participant"
	marks := DefaultMarks
	if o != nil {
		marks = cmp.Or(o.Marks, marks)
	}
	space, err := prepared.Open(ctx, fail, driver.MariaDB, namespace, marks, db != nil)
	if err != nil {
		return nil, err
	}
	p := &Participant{space: space, db: db, slots: prepared.SlotsOf(db, func(db *sql.DB) int { return db.Stats().MaxOpenConnections }), keep: DefaultKeep, pause: backoff.Sleep, kept: map[driver.XID]*branch{}}
	if o != nil && o.Keep != 0 {
		p.keep = o.Keep
	}
	why, err := refuseXA(ctx, db)
	if why != nil {
		return nil, problem(op, namespace, interlock.Definite, why)
	}
	if err == nil {
		err = p.create(ctx, marks)
	}
	if err != nil {
		return nil, ofRead(ctx, op, namespace, err)
	}
	return p, nil
}

// create creates the table of marks. If it exists, the user needs no right to create tables.
func (p *Participant) create(ctx context.Context, name string) error {
	schema, table, qualified := strings.Cut(name, ".")
	if !qualified {
		schema, table = "", name
	}
	found := 0
	err := one(ctx, p.db, `select count(*) from information_schema.tables where table_schema = if(? = '', database(), ?) and table_name = ?`,
		[]any{schema, schema, table}, &found)
	if err != nil || found > 0 {
		return err
	}
	_, err = p.db.ExecContext(ctx, marksSchema(p.space.Marks))
	return err
}

func marksSchema(table string) string {
	return `create table if not exists ` + table + ` (
	branch varbinary(100) not null primary key,
	outcome varchar(20) character set latin1 not null,
	marked datetime(6) not null,
	session bigint unsigned not null,
	seen datetime(6) null) engine = InnoDB`
}

// formatID distinguishes XIDs of this package from those of other transaction managers: "ILOK".
const formatID = 0x494c4f4b

// bqual returns the namespace and the branch, neither of which has a slash.
func (p *Participant) bqual(x driver.XID) string { return p.space.Namespace + "/" + x.Branch }

// key returns the branch's key in the table of marks.
func (p *Participant) key(x driver.XID) string { return p.bqual(x) + "/" + x.Transaction }

// xid returns the branch's name for statements.
func (p *Participant) xid(x driver.XID) string {
	return fmt.Sprintf("X'%s',X'%s',%d", hex.EncodeToString([]byte(x.Transaction)), hex.EncodeToString([]byte(p.bqual(x))), formatID)
}

// filters reads the variables that exclude changes from replication to this server: a branch prepared
// there would be incomplete.
const filters = `select variable_name, variable_value from information_schema.global_variables where variable_value <> ''
	and variable_name in ('REPLICATE_DO_DB', 'REPLICATE_IGNORE_DB', 'REPLICATE_DO_TABLE',
		'REPLICATE_IGNORE_TABLE', 'REPLICATE_WILD_DO_TABLE', 'REPLICATE_WILD_IGNORE_TABLE')`

const accessDenied = 1227

// refuseXA returns why prepared branches are not safe on a server, or nil.
func refuseXA(ctx context.Context, q querier) (why, err error) {
	f, err := ask(ctx, q)
	var filter, value, binlog string
	if err == nil {
		err = one(ctx, q, filters, nil, &filter, &value)
	}
	if err == nil && filter == "" {
		filter, value, err = logFilter(ctx, q)
	}
	if err == nil {
		err = one(ctx, q, `select variable_value from information_schema.global_variables where variable_name = 'BINLOG_STORAGE_ENGINE'`,
			nil, &binlog)
	}
	if err != nil {
		return nil, err
	}
	if why = f.refuseXA(filter, value, binlog); why == nil && !f.autocommit {
		why = errAutocommit
	}
	return why, nil
}

// logFilter returns the filter that excludes changes from the binary log, and so from every replica.
// Without the privilege to monitor the log, it finds none.
func logFilter(ctx context.Context, q querier) (filter, value string, err error) {
	var file, position, do, ignore string
	err = one(ctx, q, `show master status`, nil, &file, &position, &do, &ignore)
	switch {
	case isNumber(err, accessDenied):
		return "", "", nil
	case do != "":
		return "BINLOG_DO_DB", do, err
	case ignore != "":
		return "BINLOG_IGNORE_DB", ignore, err
	}
	return "", "", err
}

func (f facts) refuseXA(filter, value, binlog string) error {
	switch {
	case !strings.Contains(f.version, "MariaDB"):
		return fmt.Errorf("the server is %s: MariaDB 10.5 or later is needed", f.version)
	case f.galera:
		return errors.New("the server is a node of a Galera cluster, which does not replicate prepared branches: use a saga or TCC there")
	case f.refusal() != nil: // its version is too old, or it is read-only
		return f.refusal()
	case filter != "":
		return fmt.Errorf("the server has %s = %s: prepared branches are not safe under replication filters", strings.ToLower(filter), value)
	case strings.EqualFold(binlog, "innodb"):
		return errors.New("the server keeps its binary log in InnoDB, which does not replicate prepared branches")
	}
	return nil
}
