package doctor

import (
	"context"
	"database/sql"
	"fmt"
	"net/http"
	"strconv"
	"testing"
	"time"

	client "github.com/go-sql-driver/mysql"
	"github.com/go-zookeeper/zk"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	coordination "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/kube"
	"github.com/interlock-dev/interlock/driver/mysql"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/driver/zookeeper"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// far is a counter that no guard accepts.
var far = interlock.CounterAt(time.Now().Add(5 * 365 * 24 * time.Hour))

// used takes a lock, so that there are counters, and closes the driver.
func used(t *testing.T, d driver.Fenced, err error) {
	t.Helper()
	testbed.OK(t, err)
	defer d.Close(context.Background())
	if _, err := d.Acquire(t.Context(), driver.Request{Name: "n", Owner: "o"}); err != nil {
		t.Fatal(err)
	}
	testbed.OK(t, d.Release(t.Context(), "n", "o"))
}

// mustJudge requires the severity of a finding, or "nothing".
func mustJudge(t *testing.T, url, id, want string) {
	t.Helper()
	if got := severityOf(examine(t, url, Options{TTL: 10 * time.Second}), id); got != want {
		t.Errorf("%s is %q, want %q", id, got, want)
	}
}

func postgresTokens(t *testing.T, server *testbed.Server) {
	pool, err := pgxpool.New(t.Context(), server.URL())
	testbed.OK(t, err)
	defer pool.Close()
	config, err := pgx.ParseConfig(server.URL())
	testbed.OK(t, err)
	url := server.URL()
	mustJudge(t, url, "postgres.tokens", "nothing")
	session, err := postgres.Open(t.Context(), config, nil)
	used(t, session, err)
	table, err := postgres.OpenTable(t.Context(), pool, nil)
	used(t, table, err)
	for url, spoil := range map[string]string{
		url:                 fmt.Sprintf("select setval('interlock_token', %d)", far),
		url + "&mode=table": fmt.Sprintf("update interlock_lease set counter = %d", far),
	} {
		mustJudge(t, url, "postgres.tokens", "ok")
		if _, err := pool.Exec(t.Context(), spoil); err != nil {
			t.Fatal(err)
		}
		mustJudge(t, url, "postgres.tokens", "critical")
	}
}

func mysqlTokens(t *testing.T, db *sql.DB, server *testbed.Server) {
	config, err := client.ParseDSN(server.URL())
	testbed.OK(t, err)
	config.Logger = &client.NopLogger{}
	url := "mysql://root@" + server.Addr() + "/test"
	mustJudge(t, url, "mysql.tokens", "nothing")
	session, err := mysql.Open(t.Context(), config, nil)
	used(t, session, err)
	table, err := mysql.OpenTable(t.Context(), db, nil)
	used(t, table, err)
	for url, rows := range map[string]string{url: "interlock_holder", url + "?mode=table": "interlock_lease"} {
		mustJudge(t, url, "mysql.tokens", "ok")
		if _, err := db.Exec(fmt.Sprintf("update %s set counter = %d", rows, far)); err != nil {
			t.Fatal(err)
		}
		mustJudge(t, url, "mysql.tokens", "critical")
	}
}

func zookeeperTokens(t *testing.T, url string) {
	addr := url[len("zookeeper://"):]
	mustJudge(t, url, "zookeeper.tokens", "nothing")
	d, err := zookeeper.Open(t.Context(), &zookeeper.Options{Servers: []string{addr}})
	used(t, d, err)
	mustJudge(t, url, "zookeeper.tokens", "ok")
	conn, _, err := zk.Connect([]string{addr}, 10*time.Second, zk.WithLogger(silence{}), zk.WithLogInfo(false))
	testbed.OK(t, err)
	defer conn.Close()
	// An invalid base is critical; a scale is valid for 2^24 transactions, wherever an
	// election has moved their ids.
	const now = 200_000_000_000_000
	for data, want := range map[string]string{
		fmt.Sprintf(`{"base":%d,"anchor":1}`, far):        "critical",
		`{"base":-5,"anchor":1}`:                          "critical",
		`nonsense`:                                        "critical",
		fmt.Sprintf(`{"base":%d,"anchor":1}`, int64(now)): "ok",
	} {
		if _, err := conn.Set("/interlock/interlock.base", []byte(data), -1); err != nil {
			t.Fatal(err)
		}
		mustJudge(t, url, "zookeeper.tokens", want)
	}
}

func kubeTokens(t *testing.T, k *testbed.Kube, url string) {
	config := &rest.Config{Host: k.URL(), BearerToken: testbed.KubeAdmin, TLSClientConfig: rest.TLSClientConfig{CAData: k.CA}}
	mustJudge(t, url, "kube.tokens", "nothing")
	d, err := kube.Open(t.Context(), config, nil)
	used(t, d, err)
	mustJudge(t, url, "kube.tokens", "ok")
	p, err := kubeFor(config, "default")
	testbed.OK(t, err)
	defer p.close()
	for base, want := range map[int64]string{far: "critical", 1: "ok"} {
		var lease coordination.Lease
		_, err := p.call(t.Context(), http.MethodGet, p.leases()+"/n", nil, &lease)
		if err == nil {
			lease.Annotations["interlock-dev.github.io/base"] = strconv.FormatInt(base, 10)
			_, err = p.call(t.Context(), http.MethodPut, p.leases()+"/n", lease, &lease)
		}
		testbed.OK(t, err)
		mustJudge(t, url, "kube.tokens", want)
	}
	if _, err := p.call(t.Context(), http.MethodDelete, p.leases()+"/n", nil, &metav1.Status{}); err != nil {
		t.Fatal(err)
	}
}
