package postgres

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5"

	"github.com/interlock-dev/interlock"
)

// epochMicros is the start of counters in microseconds since 1970.
var epochMicros = strconv.FormatInt(interlock.EpochUnixMicro, 10)

// A PoolerError reports a pooler that assigns server processes to transactions instead of sessions. The
// locks of a session would stay with a process that others use. It is Definite: connect without the
// pooler, let it pool sessions, or use [OpenTable].
type PoolerError struct {
	// Want is the server process that served the session first, Got the one that
	// answered later; they are equal if another connection got it meanwhile.
	Want, Got string
}

// Error returns the remedy.
func (e *PoolerError) Error() string {
	how := "process " + e.Want + " served us, then " + e.Got
	if e.Want == e.Got {
		how = "process " + e.Want + " served two connections at once"
	}
	return fmt.Sprintf("a pooler in transaction mode is in front of the server (%s): "+
		"session locks are not safe there; connect past it, use its session mode, or use OpenTable", how)
}

// ErrorKind returns [interlock.Definite].
func (e *PoolerError) ErrorKind() interlock.ErrorKind { return interlock.Definite }

// probe returns the server process of a session, and refuses a pooler that would change it. Without a
// pooler it is the process that the server named at the start of the connection. A pooler names a
// number of its own. Then a second connection occupies processes, one after the other; if one of them
// is ours, the pooler does not reserve ours. Poolers that pass the probe are detected later, because
// every grant and every ping returns its server process.
func (d *dialer) probe(ctx context.Context, conn *pgx.Conn) (string, error) {
	pid, err := processOf(ctx, conn)
	if err != nil || pid == strconv.FormatUint(uint64(conn.PgConn().PID()), 10) {
		return pid, err
	}
	other, err := pgx.ConnectConfig(ctx, d.config.Copy())
	if err != nil {
		return "", err
	}
	defer closeSoon(ctx, other)
	for range 8 {
		if err := occupied(ctx, conn, other, pid); err != nil {
			return "", err
		}
	}
	return pid, nil
}

// occupied holds a transaction open on other, and requires that it runs in another process than
// ours, which still serves conn before and meanwhile.
func occupied(ctx context.Context, conn, other *pgx.Conn, pid string) error {
	if err := served(ctx, conn, pid); err != nil { // ours becomes the last one used
		return err
	}
	tx, err := other.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	theirs, err := processOf(ctx, other)
	if err != nil {
		return err
	}
	// Ours is not used then: there may be no other process to wait for.
	if theirs == pid {
		return &PoolerError{Want: pid, Got: theirs}
	}
	return served(ctx, conn, pid)
}

// served requires that a process serves conn.
func served(ctx context.Context, conn *pgx.Conn, pid string) error {
	ours, err := processOf(ctx, conn)
	if err == nil && ours != pid {
		return &PoolerError{Want: pid, Got: ours}
	}
	return err
}

func processOf(ctx context.Context, conn *pgx.Conn) (pid string, err error) {
	err = conn.QueryRow(ctx, `select pg_backend_pid()::text`, pgx.QueryExecModeExec).Scan(&pid)
	return pid, err
}

// facts are the server's own data.
type facts struct {
	version int
	standby bool
	durable bool // flushed data survive a crash
	// synchronous: commits are flushed before they are answered, by the
	// connection's own setting.
	synchronous bool
	encoding    string
}

// ask reads facts, and refuses a server that cannot keep locks.
func ask(ctx context.Context, conn *pgx.Conn) (f facts, err error) {
	err = conn.QueryRow(ctx, `select current_setting('server_version_num')::int, pg_is_in_recovery(),
		current_setting('fsync') = 'on' and current_setting('full_page_writes') = 'on', current_setting('server_encoding'),
		current_setting('synchronous_commit') <> 'off'`,
		pgx.QueryExecModeExec).Scan(&f.version, &f.standby, &f.durable, &f.encoding, &f.synchronous)
	switch {
	case err != nil:
		return f, err
	case f.version < 140000:
		return f, &refusal{fmt.Errorf("it is version %d; 14 or later is needed, which ends idle sessions", f.version/10000)}
	case f.standby:
		return f, &refusal{errors.New("it is a standby; connect to its primary")}
	case f.encoding != "UTF8":
		return f, &refusal{fmt.Errorf("its encoding is %s; UTF8 is needed, so that every name can be kept", f.encoding)}
	}
	return f, nil
}

// refusal returns a Definite error: this server cannot be used.
type refusal struct{ err error }

func (r *refusal) Error() string                  { return "this server cannot keep locks: " + r.err.Error() }
func (r *refusal) Unwrap() error                  { return r.err }
func (r *refusal) ErrorKind() interlock.ErrorKind { return interlock.Definite }
