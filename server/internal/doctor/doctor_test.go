package doctor

import (
	"context"
	"database/sql"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/consul"
	"github.com/interlock-dev/interlock/driver/redis"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/server/internal/backend"
	"github.com/interlock-dev/interlock/txn/journal"
)

func TestMain(m *testing.M) { testbed.Main(m) }

const patience = testbed.Patience

// examine examines a backend and omits measurements, which depend on the machine.
func examine(t *testing.T, url string, o Options) Report {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r, err := Examine(ctx, url, o)
	testbed.OK(t, err)
	return r
}

// mustFind compares the severities of named findings, "ID=SEVERITY …"; all others
// must be at most Info.
func mustFind(t *testing.T, r Report, want string) {
	t.Helper()
	left := map[string]string{}
	for _, pair := range strings.Fields(want) {
		id, severity, _ := strings.Cut(pair, "=")
		left[id] = severity
	}
	for _, f := range r.Findings {
		if f.ID == "latency" || f.ID == "pause" {
			continue // of the machine
		}
		severity, named := left[f.ID]
		delete(left, f.ID)
		if named && severity != f.Severity.String() || !named && f.Severity > Info {
			t.Errorf("%+v, want %q", f, severity)
		}
		if f.Why == "" || f.Seen == "" || (f.Do == "") != (f.Severity == OK) {
			t.Errorf("a finding without its texts: %+v", f)
		}
	}
	if len(left) > 0 {
		t.Errorf("no findings of %v", left)
	}
}

func TestRedis(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ args, want string }{
		"as it comes": {"", "redis.durability=warning redis.replicas=ok redis.eviction=ok clock=ok redis.open=ok redis.rights=ok"},
		"durable":     {"--appendonly yes --appendfsync always", "redis.durability=ok redis.mode=ok redis.version=ok redis.disk=ok"},
		"a second":    {"--appendonly yes --appendfsync everysec", "redis.durability=warning"},
		"by and by":   {"--appendonly yes --appendfsync always --no-appendfsync-on-rewrite yes", "redis.durability=warning"},
		"secretive":   {"--appendonly yes --appendfsync always --rename-command CONFIG NONE", "redis.durability=warning"},
		"evicting": {"--maxmemory 64mb --maxmemory-policy allkeys-lru",
			"redis.eviction=critical redis.open=critical redis.memory=ok redis.durability=warning"},
		"full":         {"--maxmemory 1", "redis.memory=critical redis.eviction=ok redis.durability=warning"},
		"starving":     {"--min-replicas-to-write 1", "redis.unconfirmed=critical redis.durability=warning"},
		"in a cluster": {"--cluster-enabled yes", "redis.mode=critical redis.open=critical redis.durability=warning"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testbed.Redis(t, strings.Fields(c.args)...)
			mustFind(t, examine(t, "redis://"+server.Addr(), Options{}), c.want)
			onlyReads(t, "redis://"+server.Addr(), func() string { return dirty(t, server) })
		})
	}
}

// TestRedisCluster requires findings for each node of a cluster.
func TestRedisCluster(t *testing.T) {
	t.Parallel()
	c := testbed.RedisCluster(t, false, "--appendonly", "yes", "--appendfsync", "always")
	mustFind(t, examine(t, c.URL(), Options{}), "redis.mode=ok redis.durability=ok redis.eviction=ok redis.open=ok redis.rights=ok")
	operator, err := redis.Dial("redis://" + c.Servers[2].Addr())
	testbed.OK(t, err)
	defer operator.Close()
	set := operator.B().ConfigSet().ParameterValue().ParameterValue("maxmemory-policy", "allkeys-lru").ParameterValue("appendfsync", "no").Build()
	testbed.OK(t, operator.Do(t.Context(), set).Error())
	mustFind(t, examine(t, c.URL(), Options{}), "redis.mode=ok redis.durability=warning redis.eviction=critical redis.open=critical")
	c.Servers[2].Kill()
	testbed.Eventually(t, "the slots of a dead server are missed", patience, func() bool {
		return severityOf(examine(t, c.URL(), Options{}), "redis.slots") == "critical"
	})
	for range 5 { // commands without a key go to any server
		r := examine(t, c.URL(), Options{})
		r.Findings = slices.DeleteFunc(r.Findings, func(f Finding) bool { return f.ID == "redis.open" }) // fails if it subscribes at the dead server
		mustFind(t, r, "redis.slots=critical redis.node=warning clock=ok redis.durability=ok")
	}
}

func TestRedisReplica(t *testing.T) {
	t.Parallel()
	primary := testbed.Redis(t, "--appendonly", "yes", "--appendfsync", "always", "--repl-diskless-sync-delay", "0")
	replica := testbed.Redis(t, append([]string{"--replicaof"}, strings.Split(primary.Addr(), ":")...)...)
	testbed.Eventually(t, "the replica follows", patience, func() bool {
		for _, f := range examine(t, "redis://"+primary.Addr(), Options{}).Findings {
			if f.ID == "redis.replicas" {
				return f.Severity == Warning
			}
		}
		return false
	})
	mustFind(t, examine(t, "redis://"+primary.Addr(), Options{}), "redis.replicas=warning redis.role=ok redis.durability=ok")
	mustFind(t, examine(t, "redis://"+primary.Addr()+"?replicas=1", Options{}), "redis.replicas=ok redis.open=ok")
	mustFind(t, examine(t, "redis://"+primary.Addr()+"?replicas=2", Options{}), "redis.unconfirmed=critical")
	mustFind(t, examine(t, "redis://"+testbed.Sentinel(t, primary).Addr(), Options{}), "redis.sentinel=critical")
	mustFind(t, examine(t, "redis://"+replica.Addr(), Options{}), "redis.role=critical redis.open=critical redis.durability=warning")
}

func TestEtcd(t *testing.T) {
	t.Parallel()
	server := testbed.Etcd(t, "--unsafe-no-fsync", "--quota-backend-bytes=1048576")
	url := "etcd://" + server.Addr()
	fine := "etcd.members=warning etcd.health=ok etcd.leader=ok etcd.version=ok etcd.apply=ok etcd.alarms=ok etcd.auth=info etcd.rights=ok"
	mustFind(t, examine(t, url, Options{}), fine)
	c := etcdClient(t, server)
	onlyReads(t, url, func() string {
		reply, err := c.Get(t.Context(), "x")
		testbed.OK(t, err)
		return fmt.Sprint(reply.Header.Revision)
	})
	testbed.Eventually(t, "the quota is used up", patience, func() bool {
		_, err := c.Put(t.Context(), "k", strings.Repeat("x", 1<<14))
		return err != nil
	})
	mustFind(t, examine(t, url, Options{}), strings.Replace(fine, "etcd.alarms=ok", "etcd.alarms=critical", 1)+" etcd.quota=warning")
}

// TestEtcdWithoutMajority requires a finding, instead of an error, while nothing is granted.
func TestEtcdWithoutMajority(t *testing.T) {
	t.Parallel()
	e := testbed.EtcdCluster(t, 3)
	url := "etcd://" + strings.Join(e.Addrs(), ",")
	mustFind(t, examine(t, url, Options{}), "etcd.members=ok etcd.leader=ok etcd.health=ok")
	e.Peers[0].Kill()
	e.Peers[1].Kill()
	testbed.Eventually(t, "the last member has no leader", patience, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second) // as the command
		defer cancel()
		r, err := Examine(ctx, url, Options{})
		return err == nil && severityOf(r, "etcd.leader") == "critical" && severityOf(r, "etcd.health") == "warning"
	})
}

// TestEtcdAdvertisesNothing requires no alarm about a server that answers at the URL only.
func TestEtcdAdvertisesNothing(t *testing.T) {
	t.Parallel()
	server := testbed.Etcd(t, "--unsafe-no-fsync", "--advertise-client-urls=http://127.0.0.1:1")
	mustFind(t, examine(t, "etcd://"+server.Addr(), Options{}), "etcd.members=warning etcd.leader=ok etcd.health=ok")
}

// TestEtcdTwice requires that servers of two clusters in one URL are critical.
func TestEtcdTwice(t *testing.T) {
	t.Parallel()
	url := "etcd://" + testbed.Etcd(t, "--unsafe-no-fsync").Addr() + "," + testbed.Etcd(t, "--unsafe-no-fsync", "--initial-cluster-token=other").Addr()
	mustFind(t, examine(t, url, Options{}), "etcd.members=critical")
}

func etcdClient(t *testing.T, server *testbed.Server) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{server.Addr()}, Logger: zap.NewNop()})
	testbed.OK(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestPostgres(t *testing.T) {
	t.Parallel()
	durable := testbed.Postgres(t, "-c", "fsync=on")
	for name, c := range map[string]struct{ query, want string }{
		"durable": {"", "postgres.durability=ok postgres.version=ok postgres.role=ok postgres.readonly=ok postgres.encoding=ok " +
			"postgres.standbys=ok postgres.rights=ok postgres.pooler=ok postgres.idle=ok postgres.connections=ok clock=ok"},
		"late commits":         {"&options=-c%20synchronous_commit%3Doff", "postgres.durability=ok"},
		"late commits of rows": {"&options=-c%20synchronous_commit%3Doff&mode=table", "postgres.durability=warning"},
		"read-only":            {"&options=-c%20default_transaction_read_only%3Don", "postgres.role=ok postgres.readonly=warning"},
		"read-only rows":       {"&options=-c%20default_transaction_read_only%3Don&mode=table", "postgres.role=ok postgres.readonly=critical"},
		"impatient":            {"&options=-c%20idle_session_timeout%3D900", "postgres.idle=warning"},
	} {
		t.Run(name, func(t *testing.T) { mustFind(t, examine(t, durable.URL()+c.query, Options{}), c.want) })
	}
	onlyReads(t, durable.URL(), func() string { return nextTransaction(t, durable) })
	t.Run("roles", func(t *testing.T) { postgresRoles(t, durable) })
	t.Run("tokens", func(t *testing.T) { postgresTokens(t, durable) })
	t.Run("tables", func(t *testing.T) {
		conn, err := pgx.Connect(t.Context(), durable.URL())
		testbed.OK(t, err)
		defer func() { _ = conn.Close(context.Background()) }()
		exec := func(statement string) {
			_, err := conn.Exec(t.Context(), statement, pgx.QueryExecModeSimpleProtocol)
			testbed.OK(t, err)
		}
		exec("create schema old; set search_path = old")
		oldTables(t, driver.Postgres, "postgres.tables", durable.URL()+"&options=-c%20search_path%3Dold", exec)
	})
	t.Run("pooler", func(t *testing.T) {
		pooler := testbed.PgBouncer(t, durable, "transaction")
		url := "postgres://postgres@" + pooler.Addr() + "/postgres?sslmode=disable&namespace=pooled"
		mustFind(t, examine(t, url, Options{}), "postgres.pooler=critical postgres.durability=ok")
		if canLock(t, url, "") {
			t.Error("session locks can be acquired")
		}
		mustFind(t, examine(t, url+"&mode=table", Options{}), "postgres.pooler=ok")
		pooler = testbed.PgBouncer(t, durable, "session")
		url = "postgres://postgres@" + pooler.Addr() + "/postgres?sslmode=disable&namespace=pooled"
		mustFind(t, examine(t, url, Options{}), "postgres.pooler=info postgres.durability=ok")
	})
	t.Run("crowded", func(t *testing.T) {
		server := testbed.Postgres(t, "-c", "fsync=on", "-c", "max_connections=4", "-c", "superuser_reserved_connections=3")
		mustFind(t, examine(t, server.URL(), Options{}), "postgres.connections=warning")
	})
	t.Run("standbys", postgresStandbys)
}

// oldTables requires a finding for each table with other columns than this version has, with its part.
func oldTables(t *testing.T, dialect driver.Dialect, id, url string, exec func(statement string)) {
	t.Helper()
	for _, p := range []driver.Creator{backend.LockPart(""), journal.NewTable[struct{}](nil, "")} {
		statements, err := driver.Statements(dialect, p)
		testbed.OK(t, err)
		for _, s := range statements {
			exec(s)
		}
	}
	want := func(severity, seen string) {
		t.Helper()
		for _, f := range examine(t, url, Options{}).Findings {
			if f.ID == id && f.Severity.String() == severity && strings.HasSuffix(f.Seen, seen) {
				return
			}
		}
		t.Errorf("no finding %s %s %q: %+v", id, severity, seen, examine(t, url, Options{}).Findings)
	}
	want("ok", "none")
	exec("alter table interlock_journal_head add column newer int")
	want("warning", ": interlock_journal_head (journal) has an unknown column newer")
	exec("alter table interlock_lease drop column expires")
	want("critical", ": interlock_lease (locks) has no column expires, interlock_journal_head (journal) has an unknown column newer")
}

// postgresStandbys requires a finding for a role that may not see others' sessions.
func postgresStandbys(t *testing.T) {
	server := testbed.Postgres(t, "-c", "fsync=on", "-c", "wal_level=logical", "-c", "max_connections=20", "-c", "superuser_reserved_connections=3")
	conn, err := pgx.Connect(t.Context(), server.URL())
	testbed.OK(t, err)
	defer func() { _ = conn.Close(context.Background()) }()
	_, err = conn.Exec(t.Context(), "create role plain login; create role monitor login in role pg_monitor; create schema s authorization plain; "+
		"grant all on schema s to monitor", pgx.QueryExecModeSimpleProtocol)
	testbed.OK(t, err)
	as := func(role string) string {
		return "postgres://" + role + "@" + server.Addr() + "/postgres?sslmode=disable&options=-c%20search_path%3Ds"
	}
	follow(t, server, "CREATE_REPLICATION_SLOT cdc TEMPORARY LOGICAL pgoutput", "START_REPLICATION SLOT cdc LOGICAL 0/0 (proto_version '1', publication_names 'p')")
	mustFind(t, examine(t, server.URL(), Options{}), "postgres.standbys=ok") // a subscriber never takes over
	follow(t, server, "START_REPLICATION 0/1000000")
	for _, url := range []string{server.URL(), as("monitor"), as("plain")} {
		mustFind(t, examine(t, url, Options{}), "postgres.standbys=warning postgres.connections=ok")
	}
	_, err = conn.Exec(t.Context(), "alter system set synchronous_standby_names = 'a, b'", pgx.QueryExecModeSimpleProtocol)
	testbed.OK(t, err)
	_, err = conn.Exec(t.Context(), "select pg_reload_conf()", pgx.QueryExecModeSimpleProtocol)
	testbed.OK(t, err)
	testbed.Eventually(t, "the settings are read again", patience, func() bool {
		return severityOf(examine(t, as("plain"), Options{}), "postgres.standbys") == "info"
	})
	mustFind(t, examine(t, as("monitor"), Options{}), "postgres.standbys=warning")
	for range 14 {
		c, err := pgx.Connect(t.Context(), server.URL())
		testbed.OK(t, err)
		defer func() { _ = c.Close(context.Background()) }()
	}
	mustFind(t, examine(t, as("plain"), Options{}), "postgres.standbys=info postgres.connections=warning")
}

// follow replicates until the end of the test; the last command starts it.
func follow(t *testing.T, server *testbed.Server, commands ...string) {
	t.Helper()
	c, err := pgconn.Connect(t.Context(), server.URL()+"&replication=database")
	testbed.OK(t, err)
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	last := len(commands) - 1
	for _, command := range commands[:last] {
		_, err := c.Exec(t.Context(), command).ReadAll()
		testbed.OK(t, err)
	}
	c.Frontend().Send(&pgproto3.Query{String: commands[last]})
	testbed.OK(t, c.Frontend().Flush())
	for {
		m, err := c.ReceiveMessage(t.Context())
		testbed.OK(t, err)
		if _, ok := m.(*pgproto3.CopyBothResponse); ok {
			return
		}
	}
}

func TestMariaDB(t *testing.T) {
	t.Parallel()
	server := testbed.MariaDB(t, "--log-bin=log", "--sync-binlog=1", "--innodb-flush-method=fsync", "--server-id=1")
	url := "mysql://root@" + server.Addr() + "/test"
	db, err := sql.Open("mysql", server.URL())
	testbed.OK(t, err)
	defer db.Close()
	for _, c := range []struct{ set, reset, want string }{
		{"", "", "mysql.durability=ok mysql.version=ok mysql.role=ok mysql.galera=ok mysql.replicas=ok mysql.wait=ok mysql.connections=ok mysql.rights=ok clock=ok"},
		{"innodb_flush_log_at_trx_commit=2", "innodb_flush_log_at_trx_commit=1", "mysql.durability=warning"},
		{"sync_binlog=0", "sync_binlog=1", "mysql.durability=warning"},
		{"read_only=1", "read_only=0", "mysql.role=critical"},
		{"wait_timeout=30", "wait_timeout=28800", "mysql.wait=info"},
	} {
		mustSet(t, db, c.set)
		mustFind(t, examine(t, url, Options{}), c.want)
		mustSet(t, db, c.reset)
	}
	mysqlUsers(t, db, server)
	mysqlTokens(t, db, server)
	exec := func(statement string) {
		_, err := db.Exec(statement)
		testbed.OK(t, err)
	}
	exec("create database old")
	db.SetMaxOpenConns(1)
	exec("use old")
	old := "mysql://root@" + server.Addr() + "/old"
	oldTables(t, driver.MariaDB, "mysql.tables", old, exec)
	exec("drop table interlock_lease, interlock_journal_head")
	mustFind(t, examine(t, old, Options{}), "mysql.tables=ok")
	exec("alter table interlock_holder modify counter bigint not null")
	mustFind(t, examine(t, old, Options{}), "mysql.tables=critical")
	mustFind(t, examine(t, old+"?mode=table", Options{}), "mysql.tables=ok")
	exec("use test")
	db.SetMaxOpenConns(0)
	mysqlReplicas(t, db, server)
}

// mysqlReplicas requires a finding for a user who may not see others' sessions.
func mysqlReplicas(t *testing.T, db *sql.DB, server *testbed.Server) {
	replica := testbed.MariaDB(t, "--server-id=2", "--innodb-flush-method=fsync", "--innodb-doublewrite=0")
	mustFind(t, examine(t, "mysql://root@"+replica.Addr()+"/test", Options{}), "mysql.durability=warning")
	follower, err := sql.Open("mysql", replica.URL())
	testbed.OK(t, err)
	defer follower.Close()
	host, port, err := net.SplitHostPort(server.Addr())
	testbed.OK(t, err)
	for _, s := range []string{"change master to master_host='" + host + "', master_port=" + port + ", master_user='root', master_use_gtid=no", "start slave"} {
		_, err := follower.Exec(s)
		testbed.OK(t, err)
	}
	for _, user := range []string{"root", "least"} {
		url := "mysql://" + user + "@" + server.Addr() + "/least"
		testbed.Eventually(t, user+" sees the replica", patience, func() bool {
			return severityOf(examine(t, url, Options{}), "mysql.replicas") == "warning"
		})
	}
	mustSet(t, db, "max_connections=20")
	for range 15 {
		c, err := db.Conn(t.Context())
		testbed.OK(t, err)
		defer c.Close()
	}
	mustFind(t, examine(t, "mysql://least@"+server.Addr()+"/least", Options{}), "mysql.replicas=warning mysql.connections=warning")
}

func mustSet(t *testing.T, db *sql.DB, variable string) {
	t.Helper()
	if variable == "" {
		return
	}
	if _, err := db.Exec("set global " + variable); err != nil {
		t.Fatal(err)
	}
}

func TestZooKeeper(t *testing.T) {
	t.Parallel()
	server := testbed.ZooKeeper(t)
	url := "zookeeper://" + server.Addr()
	onlyReads(t, url, func() string {
		text, err := testbed.FourLetterWord(server.Addr(), "srvr")
		testbed.OK(t, err)
		return pairs(text, ":")["Node count"]
	})
	mustFind(t, examine(t, url, Options{TTL: 10 * time.Second}),
		"zookeeper.ensemble=warning zookeeper.health=ok zookeeper.version=ok zookeeper.load=ok zookeeper.session=ok zookeeper.disk=info")
	mustFind(t, examine(t, url, Options{TTL: 2 * time.Hour}), "zookeeper.ensemble=warning zookeeper.session=warning")
	mustFind(t, examine(t, url+"?ttl=2h", Options{}), "zookeeper.ensemble=warning zookeeper.session=warning")
	mustFind(t, examine(t, url+"?ttl=2h", Options{TTL: 10 * time.Second}), "zookeeper.ensemble=warning zookeeper.session=ok")
	zookeeperTokens(t, url)
}

func TestConsul(t *testing.T) {
	t.Parallel()
	e := testbed.ConsulCluster(t, 3)
	url := "consul://" + e.Leader().Addr() + "?prefix=app/"
	healthy(t, url)
	mustFind(t, examine(t, url, Options{}), "consul.leader=ok consul.servers=ok consul.health=ok consul.session=ok")
	mustJudge(t, url, "consul.tokens", "nothing")
	d, err := consul.Open(t.Context(), &consul.Options{Address: e.Leader().Addr(), Prefix: "app/"})
	testbed.OK(t, err)
	if err := d.Close(t.Context()); err != nil {
		t.Error(err)
	}
	mustJudge(t, url, "consul.tokens", "ok")
	alone := "consul://" + testbed.Consul(t).Addr()
	healthy(t, alone)
	mustFind(t, examine(t, alone, Options{}), "consul.leader=ok consul.servers=warning consul.health=ok")
}

// healthy waits until new servers report that they are healthy.
func healthy(t *testing.T, url string) {
	t.Helper()
	testbed.Eventually(t, "the servers are healthy", time.Minute, func() bool {
		r, err := Examine(t.Context(), url, Options{})
		return err == nil && slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.ID == "consul.health" && f.Severity == OK })
	})
}

func TestZooKeeperEnsemble(t *testing.T) {
	t.Parallel()
	e := testbed.ZooKeeperEnsemble(t, 3)
	url := "zookeeper://" + strings.Join(e.Addrs(), ",")
	mustFind(t, examine(t, url, Options{TTL: 10 * time.Second}), "zookeeper.ensemble=ok zookeeper.session=ok")
	e.Peers[0].Pause() // the first in the URL
	mustFind(t, examine(t, url, Options{TTL: 10 * time.Second}), "zookeeper.ensemble=ok zookeeper.health=warning")
	e.Peers[1].Kill()
	testbed.Eventually(t, "the last server serves nothing", patience, func() bool {
		r := examine(t, url, Options{TTL: 10 * time.Second})
		return severityOf(r, "zookeeper.health") == "critical" && severityOf(r, "zookeeper.version") != "critical"
	})
}

// TestZooKeeperTwice requires that servers which do not form one ensemble are critical.
func TestZooKeeperTwice(t *testing.T) {
	t.Parallel()
	url := "zookeeper://" + testbed.ZooKeeper(t).Addr() + "," + testbed.ZooKeeper(t).Addr()
	mustFind(t, examine(t, url, Options{TTL: 10 * time.Second}), "zookeeper.ensemble=critical")
}

func TestKube(t *testing.T) {
	t.Parallel()
	k := testbed.KubeAPIServer(t)
	admin := kubeURL(t, k, testbed.KubeAdmin)
	mustFind(t, examine(t, admin, Options{}), "kube.version=ok kube.rights=ok kube.sweep=ok kube.legacy=ok clock=ok")
	limited := examine(t, kubeURL(t, k, testbed.KubeUser), Options{})
	mustFind(t, limited, "kube.rights=critical kube.sweep=info kube.legacy=info")
	if !slices.ContainsFunc(limited.Findings, func(f Finding) bool {
		return f.ID == "kube.legacy" && strings.Contains(f.Do, "list on configmaps")
	}) {
		t.Errorf("%+v", limited.Findings)
	}
	kubeTokens(t, k, admin)
	p, err := kubeFor(&rest.Config{Host: k.URL(), BearerToken: testbed.KubeAdmin, TLSClientConfig: rest.TLSClientConfig{CAData: k.CA}}, "default")
	testbed.OK(t, err)
	defer p.close()
	old := metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "old", Annotations: map[string]string{legacyKey: "{}"}}}
	if _, err := p.call(t.Context(), http.MethodPost, p.configMaps(), old, &old); err != nil {
		t.Fatal(err)
	}
	mustFind(t, examine(t, admin, Options{}), "kube.legacy=warning")
}

// kubeURL writes a kubeconfig for a user.
func kubeURL(t *testing.T, k *testbed.Kube, token string) string {
	t.Helper()
	if block, _ := pem.Decode(k.CA); block == nil {
		t.Fatal("the certificate is not PEM")
	}
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{Server: k.URL(), CertificateAuthorityData: k.CA}
	config.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: token}
	config.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	config.CurrentContext = "x"
	file := filepath.Join(t.TempDir(), "kubeconfig")
	testbed.OK(t, clientcmd.WriteToFile(*config, file))
	return "kube://default?kubeconfig=" + file
}

// onlyReads requires that an examination does not change a server's count of changes.
func onlyReads(t *testing.T, url string, changes func() string) {
	t.Helper()
	before := changes()
	examine(t, url, Options{TTL: 10 * time.Second})
	if after := changes(); after != before || before == "" {
		t.Errorf("%s: %q changed to %q", url, before, after)
	}
}

func nextTransaction(t *testing.T, server *testbed.Server) (next string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), server.URL())
	testbed.OK(t, err)
	defer func() { _ = conn.Close(context.Background()) }()
	testbed.OK(t, conn.QueryRow(t.Context(), "select pg_snapshot_xmax(pg_current_snapshot())::text").Scan(&next))
	return next
}

func dirty(t *testing.T, server *testbed.Server) string {
	t.Helper()
	c, err := redis.Dial("redis://" + server.Addr())
	testbed.OK(t, err)
	defer c.Close()
	text, err := c.Do(t.Context(), c.B().Info().Section("persistence").Build()).ToString()
	testbed.OK(t, err)
	return infoFields(text)["rdb_changes_since_last_save"]
}

// TestSilentServer requires an error before long from a server that accepts connections and never
// answers.
func TestSilentServer(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testbed.OK(t, err)
	t.Cleanup(func() { _ = l.Close() }) // after the parallel subtests
	addr := l.Addr().String()
	config := filepath.Join(t.TempDir(), "kubeconfig")
	testbed.OK(t, os.WriteFile(config, []byte("{apiVersion: v1, kind: Config, clusters: [{name: c, cluster: {server: 'http://"+addr+"'}}], "+
		"contexts: [{name: x, context: {cluster: c}}], current-context: x}"), 0o600))
	for _, url := range []string{"redis://" + addr, "rediss://" + addr, "redis://" + addr + "?cluster=true", "redis://" + addr + "?master_set=m",
		"etcd://" + addr, "etcd://u:s3cret@" + addr, "etcd://" + addr + "?tls=true", "postgres://u:s3cret@" + addr + "/d", "mysql://u:s3cret@" + addr + "/d",
		"zookeeper://" + addr, "zookeeper://" + addr + "?tls=true", "consul://" + addr + "?token=s3cret", "consul://" + addr + "?tls=true",
		"kube://default?kubeconfig=" + config} {
		t.Run(strings.NewReplacer("/", " ", addr, "").Replace(url), func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			began := time.Now()
			r, err := Examine(ctx, url, Options{})
			if took := time.Since(began); err == nil || took > 20*time.Second || strings.Contains(fmt.Sprint(err, r), "s3cret") {
				t.Errorf("after %v: %+v, %v", took, r, err)
			}
		})
	}
}

// TestUnreachable requires no findings without an answer.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"redis://127.0.0.1:1", "etcd://127.0.0.1:1", "postgres://u:s3cret@127.0.0.1:1/d", "mysql://u:s3cret@127.0.0.1:1/d",
		"zookeeper://127.0.0.1:1", "consul://127.0.0.1:1?token=s3cret", "nonsense", "kube://default?kubeconfig=" + os.DevNull} {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		r, err := Examine(ctx, url, Options{})
		cancel()
		if err == nil || len(r.Findings) > 0 || strings.Contains(fmt.Sprint(err, r), "s3cret") {
			t.Errorf("%s: %+v, %v", url, r, err)
		}
	}
}

// TestNoKubeconfig: the error is that of a lock.
func TestNoKubeconfig(t *testing.T) {
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	t.Setenv("HOME", t.TempDir())
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	if _, err := Examine(t.Context(), "kube://default", Options{}); err == nil || !strings.Contains(err.Error(), "no cluster is named by KUBECONFIG") {
		t.Error(err)
	}
}
