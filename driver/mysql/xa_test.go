package mysql_test

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/driver/mysql"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/paths"
)

// TestParticipant keeps sessions for a moment, which the others wait for.
func TestParticipant(t *testing.T) { runParticipant(t, 200*time.Millisecond, "") }

// TestParticipantLogged: with a binary log, which takes part in every commit as an
// engine does, the client's other options, and sessions that are not kept.
func TestParticipantLogged(t *testing.T) {
	runParticipant(t, -1, "?interpolateParams=true&clientFoundRows=true", "--log-bin=log", "--binlog-format=row", "--server-id=1")
}

var participants atomic.Int64

func runParticipant(t *testing.T, keep time.Duration, options string, settings ...string) {
	shared := testbed.MariaDB(t, settings...)
	drivertest.RunParticipant(t, drivertest.ParticipantHarness{
		Start: func(t *testing.T, exclusive bool) drivertest.ParticipantBackend {
			server := shared
			if exclusive {
				server = testbed.MariaDB(t, settings...)
			}
			b := &participantBackend{paths.New[drivertest.Branches](server), server, keep, options, fmt.Sprint("n-", participants.Add(1))}
			open(t, server.URL()).do(t, `create table `+b.table()+` (k varchar(20) primary key, v int)`)
			return b
		},
	})
}

type participantBackend struct {
	*paths.Server[drivertest.Branches]
	server    *testbed.Server
	keep      time.Duration
	options   string
	namespace string
}

func (b *participantBackend) table() string {
	return "kept_" + strings.ReplaceAll(b.namespace, "-", "_")
}

func (b *participantBackend) Open(t *testing.T) (drivertest.Branches, error) {
	return b.Lead(t, func(path *testbed.Proxy) (drivertest.Branches, error) {
		p, err := b.at(t, behind(b.server, path))
		t.Cleanup(path.Close) // before the pool, which waits for what does not answer
		return p, err
	})
}

func (b *participantBackend) Beside(t *testing.T) (drivertest.Branches, error) {
	return b.at(t, b.server.URL())
}

func (b *participantBackend) at(t *testing.T, dsn string) (drivertest.Branches, error) {
	db := open(t, dsn+b.options)
	p, err := mysql.OpenParticipant(t.Context(), db.DB, b.namespace, &mysql.ParticipantOptions{Keep: b.keep})
	if err != nil {
		return nil, err
	}
	t.Cleanup(p.Close)
	return drivertest.PreparerOf(p, func(ctx context.Context, conn *sql.Conn, key string, value int) error {
		_, err := mysql.Session(conn).Exec(ctx, `insert into `+b.table()+` values (?, ?) on duplicate key update v = values(v)`, key, value)
		return err
	}, func(ctx context.Context, key string) (value int, err error) {
		err = db.QueryRowContext(ctx, `select coalesce((select v from `+b.table()+` where k = ?), 0)`, key).Scan(&value)
		return value, err
	}), nil
}

func (b *participantBackend) Faults() drivertest.Faults { return b.Server }

// wantHeuristic requires that a branch was finished otherwise.
func wantHeuristic(t testing.TB, err error) {
	t.Helper()
	if !errors.Is(err, driver.ErrHeuristic) {
		t.Errorf("got %v, want that it was finished otherwise", err)
	}
}

// errGone makes database/sql close a connection.
var errGone = sqldriver.ErrBadConn

// persist repeats what may be repeated.
func persist(t testing.TB, try func() error) {
	t.Helper()
	var err error
	testbed.Eventually(t, "an outcome", bound, func() bool {
		err = try()
		return err == nil || interlock.Kind(err) == interlock.Definite || interlock.Kind(err) == interlock.Bug
	})
	if err != nil {
		t.Fatal(err)
	}
}
