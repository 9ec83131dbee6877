package mysql_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/driver/mysql"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/paths"
)

const suiteTTL = 3 * time.Second

func TestTableFenced(t *testing.T)  { drivertest.RunFenced(t, tableHarness(t)) }
func TestTableWatcher(t *testing.T) { drivertest.RunWatcher(t, tableHarness(t)) }
func TestTableBreaker(t *testing.T) { drivertest.RunBreaker(t, tableHarness(t)) }

var namespaces atomic.Int64

// serverFor gives a test a server of its own or, in a namespace of its own, the
// shared one.
func serverFor(t *testing.T, shared *testbed.Server, exclusive bool) (*testbed.Server, string) {
	if exclusive {
		return testbed.MariaDB(t), mysql.DefaultNamespace
	}
	return shared, fmt.Sprint("n", namespaces.Add(1))
}

func tableHarness(t *testing.T) drivertest.Harness {
	shared := testbed.MariaDB(t)
	return drivertest.Harness{
		Start: func(t *testing.T, exclusive bool) drivertest.Backend {
			server, namespace := serverFor(t, shared, exclusive)
			return &tableBackend{backend{paths.New[driver.Fenced](server), open(t, server.URL()), server, namespace}}
		},
		TTL:        suiteTTL,
		Heartbeat:  mysql.DefaultPoll,
		DeadWaiter: time.Second,
		HandOvers:  100,
		Without:    drivertest.FIFO | drivertest.LostPushes | drivertest.Queue,
	}
}

// backend is a server with a path of its own for each driver.
type backend struct {
	*paths.Server[driver.Fenced]
	operator  database // past every fault of the paths
	server    *testbed.Server
	namespace string
}

func (b *backend) Faults() drivertest.Faults { return b.Server }

func (b *backend) url(path *testbed.Proxy, options string) string {
	return strings.Replace(b.server.URL(), b.server.Addr(), path.Addr(), 1) + options
}

type tableBackend struct{ backend }

func (b *tableBackend) Open(t *testing.T) (driver.Fenced, error) {
	return b.Lead(t, func(path *testbed.Proxy) (driver.Fenced, error) {
		db := open(t, b.url(path, "?interpolateParams=true&clientFoundRows="+fmt.Sprint(namespaces.Load()%2 == 0)))
		d, err := mysql.OpenTable(t.Context(), db.DB, &mysql.Options{TTL: suiteTTL, Namespace: b.namespace})
		if err != nil {
			return nil, err // not a typed nil
		}
		return d, nil
	})
}

func (b *tableBackend) Residue(t *testing.T, name string) (left []string) {
	t.Helper()
	if owner := b.operator.text(t, `select coalesce(max(concat('held by ', owner)), '') from `+b.namespace+`_lease
		where name = ? and owner <> '' and expires > utc_timestamp(6)`, name); owner != "" {
		left = append(left, owner)
	}
	return left
}

func (b *tableBackend) Delete(t *testing.T, name string) {
	t.Helper()
	if _, err := b.operator.Exec(`delete from `+b.namespace+`_lease where name = ?`, name); err != nil {
		t.Fatal(err)
	}
}
