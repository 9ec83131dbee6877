package postgres

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/interlock-dev/interlock"
)

// epochMicros is the start of counters in microseconds since 1970.
var epochMicros = strconv.FormatInt(interlock.EpochUnixMicro, 10)

// A PoolerError says that a pooler stands before the server and lends server
// processes to transactions instead of sessions. What a session locks would
// stay with a process that others use. It is Definite: connect past the pooler,
// have it pool sessions, or use [OpenTable].
type PoolerError struct {
	// Want is the server process that served the session, Got the one that
	// answered later.
	Want, Got string
}

// Error says what to do instead.
func (e *PoolerError) Error() string {
	return fmt.Sprintf("a pooler in transaction mode stands before the server (its process %s served us, then %s): "+
		"session locks are not safe there; connect past it, use its session mode, or use OpenTable", e.Want, e.Got)
}

// ErrorKind is [interlock.Definite].
func (e *PoolerError) ErrorKind() interlock.ErrorKind { return interlock.Definite }

// probe tells the server process of a session, and refuses a pooler that would
// change it. Without a pooler the process is the one that the server named when
// the connection was made. A pooler names a number of its own; then a second
// connection occupies processes, one after the other, and if one of them was
// ours, ours was not ours. Whatever escapes the probe is found later, since
// every grant and every sign of life names the process that gave it.
func (d *dialer) probe(ctx context.Context, conn *pgx.Conn) (string, error) {
	pid, err := processOf(ctx, conn)
	if err != nil || pid == strconv.FormatUint(uint64(conn.PgConn().PID()), 10) {
		return pid, err
	}
	other, err := pgx.ConnectConfig(ctx, d.config.Copy())
	if err != nil {
		return "", err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = other.Close(closing)
	}()
	for range 8 {
		if err := occupied(ctx, conn, other, pid); err != nil {
			return "", err
		}
	}
	return pid, nil
}

// occupied holds a transaction open on other, and requires that it runs in
// another process, that ours still serves conn, and that it keeps a setting.
func occupied(ctx context.Context, conn, other *pgx.Conn, pid string) error {
	mark := strconv.FormatUint(rand.Uint64(), 36)
	if _, err := conn.Exec(ctx, `select set_config('interlock.probe', $1, false)`, pgx.QueryExecModeExec, mark); err != nil {
		return err
	}
	tx, err := other.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	var theirs, ours, kept string
	const who = `select pg_backend_pid()::text, coalesce(current_setting('interlock.probe', true), '')`
	if err := tx.QueryRow(ctx, who, pgx.QueryExecModeExec).Scan(&theirs, &kept); err != nil {
		return err
	}
	if theirs == pid {
		return &PoolerError{Want: pid, Got: theirs}
	}
	if err := conn.QueryRow(ctx, who, pgx.QueryExecModeExec).Scan(&ours, &kept); err != nil {
		return err
	}
	if ours != pid || kept != mark {
		return &PoolerError{Want: pid, Got: ours}
	}
	return nil
}

func processOf(ctx context.Context, conn *pgx.Conn) (pid string, err error) {
	err = conn.QueryRow(ctx, `select pg_backend_pid()::text`, pgx.QueryExecModeExec).Scan(&pid)
	return pid, err
}

// facts are what the server tells about itself.
type facts struct {
	version int
	standby bool
	durable bool // what is flushed stays
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

// refusal says that this server will not do, however often it is asked.
type refusal struct{ err error }

func (r *refusal) Error() string                  { return "this server cannot keep locks: " + r.err.Error() }
func (r *refusal) Unwrap() error                  { return r.err }
func (r *refusal) ErrorKind() interlock.ErrorKind { return interlock.Definite }
