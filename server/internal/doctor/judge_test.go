package doctor

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/interlock-dev/interlock/internal/testbed"
)

// severityOf returns the severity of an id in a report.
func severityOf(r Report, id string) string {
	for _, f := range r.Findings {
		if f.ID == id {
			return f.Severity.String()
		}
	}
	return "nothing"
}

func TestPausesAndTheTTL(t *testing.T) {
	t.Parallel()
	const ttl = 30 * time.Second
	for _, c := range []struct {
		pause, latency     time.Duration
		wantPause, wantLat string
	}{
		{time.Millisecond, time.Millisecond, "ok", "ok"},
		{4999 * time.Millisecond, 0, "ok", "ok"},
		{5 * time.Second, 0, "warning", "ok"},
		{4500 * time.Millisecond, 500 * time.Millisecond, "warning", "ok"},
		{20 * time.Second, 0, "critical", "ok"},
		{0, time.Second, "ok", "warning"},
		{0, 10 * time.Second, "warning", "critical"},
	} {
		var r Report
		r.judge(measured{pause: c.pause, latency: c.latency}, Options{TTL: ttl})
		if p, l := severityOf(r, "pause"), severityOf(r, "latency"); p != c.wantPause || l != c.wantLat {
			t.Errorf("a pause of %v is %s, want %s; a latency of %v is %s, want %s", c.pause, p, c.wantPause, c.latency, l, c.wantLat)
		}
	}
}

// A server that stops answering while it is watched costs no finding.
func TestFailureWhileWatching(t *testing.T) {
	t.Parallel()
	for left, latency := range map[int]string{0: "nothing", 3: "ok"} {
		var r Report
		if err := r.examine(t.Context(), &dyingProbe{left}, Options{TTL: DefaultTTL, Watch: time.Hour}); err != nil {
			t.Fatal(err)
		}
		if got := severityOf(r, "answers") + " " + severityOf(r, "clock") + " " + severityOf(r, "latency"); got != "critical ok "+latency {
			t.Errorf("after %d answers: %s", left, got)
		}
	}
}

// dyingProbe answers a number of requests.
type dyingProbe struct{ left int }

func (p *dyingProbe) inspect(_ context.Context, r *Report) error {
	r.skew(time.Unix(1, 0), time.Unix(1, 0), time.Unix(1, 0), 0)
	return nil
}

func (p *dyingProbe) ping(context.Context) error {
	if p.left--; p.left < 0 {
		return errors.New("connection refused")
	}
	return nil
}

func (p *dyingProbe) close() {}

func TestClockSkew(t *testing.T) {
	t.Parallel()
	sent := time.Unix(1_800_000_000, 0)
	received := sent.Add(time.Second)
	for off, want := range map[time.Duration]string{
		500 * time.Millisecond: "ok", 2900 * time.Millisecond: "ok", 3100 * time.Millisecond: "warning", -2100 * time.Millisecond: "warning",
		time.Hour: "critical", -time.Hour: "critical",
	} {
		var r Report
		r.skew(sent.Add(off), sent, received, 0)
		if got := severityOf(r, "clock"); got != want {
			t.Errorf("%v: %s, want %s", off, got, want)
		}
	}
}

func TestPercentile(t *testing.T) {
	t.Parallel()
	var values []time.Duration
	for i := range 2000 {
		values = append(values, time.Duration(2000-i))
	}
	for part, want := range map[float64]time.Duration{0.999: 1998, 1: 2000, 0.5: 1000, 0: 1} {
		if got := percentile(values, part); got != want {
			t.Errorf("%v: %v, want %v", part, got, want)
		}
	}
	if got := percentile([]time.Duration{7}, 0.999); got != 7 {
		t.Errorf("of one: %v", got)
	}
}

// TestMeasuring requires the requested time, or the time until an error.
func TestMeasuring(t *testing.T) {
	t.Parallel()
	m, err := measure(t.Context(), func(context.Context) error { return nil }, 100*time.Millisecond)
	if err != nil || m.watched < 100*time.Millisecond || m.requests < 2 || m.slowest < m.latency {
		t.Errorf("%+v, %v", m, err)
	}
	gone := errors.New("gone")
	if m, err := measure(t.Context(), func(context.Context) error { return gone }, time.Hour); !errors.Is(err, gone) || m.requests != 0 {
		t.Errorf("%+v, %v", m, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := measure(ctx, func(context.Context) error { return nil }, time.Hour); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestWhatIsNotProvoked checks reports that no real server gives here.
func TestWhatIsNotProvoked(t *testing.T) {
	t.Parallel()
	fine := postgresFacts{version: 150000, limit: 100, encoding: "UTF8", fsync: "on", pages: "on", commit: "on"}
	state := func(version string, leader, index, applied uint64) *clientv3.StatusResponse {
		return (*clientv3.StatusResponse)(&pb.StatusResponse{Version: version, Leader: leader, RaftIndex: index, RaftAppliedIndex: applied})
	}
	maria := mysqlFacts{version: "10.11.6-MariaDB", flush: 1, wait: 28800, limit: 100}
	for name, c := range map[string]struct {
		look func(*Report)
		want string
	}{
		"redis, old":                 {func(r *Report) { redisFindings(r, map[string]string{"redis_version": "5.0.14"}, "", redisURL{}) }, "redis.version=critical"},
		"redis, full disk":           {func(r *Report) { redisFindings(r, map[string]string{"aof_last_write_status": "err"}, "", redisURL{}) }, "redis.disk=critical"},
		"redis, a sentinel":          {func(r *Report) { redisFindings(r, map[string]string{"redis_mode": "sentinel"}, "", redisURL{}) }, "redis.sentinel=critical"},
		"postgres, old":              {func(r *Report) { f := fine; f.version = 130000; postgresFindings(r, f, false) }, "postgres.version=critical"},
		"postgres, standby":          {func(r *Report) { f := fine; f.standby = true; postgresFindings(r, f, false) }, "postgres.role=critical"},
		"postgres, followed":         {func(r *Report) { f := fine; f.async = 1; postgresFindings(r, f, false) }, "postgres.standbys=warning"},
		"postgres, followed at once": {func(r *Report) { f := fine; f.sync = 1; postgresFindings(r, f, false) }, "postgres.standbys=ok"},
		"postgres, followed, late":   {func(r *Report) { f := fine; f.sync, f.commit = 1, "local"; postgresFindings(r, f, true) }, "postgres.standbys=warning postgres.durability=ok"},
		"postgres, sessions, late":   {func(r *Report) { f := fine; f.sync, f.commit = 1, "local"; postgresFindings(r, f, false) }, "postgres.standbys=ok"},
		"postgres, Latin":            {func(r *Report) { f := fine; f.encoding = "LATIN1"; postgresFindings(r, f, false) }, "postgres.encoding=critical"},
		"postgres, torn pages":       {func(r *Report) { f := fine; f.pages = "off"; postgresFindings(r, f, false) }, "postgres.durability=warning"},
		"mysql itself":               {func(r *Report) { f := maria; f.version = "8.4.0"; mysqlFindings(r, f, false) }, "mysql.version=critical"},
		"mariadb, old":               {func(r *Report) { f := maria; f.version = "10.4.1-MariaDB"; mysqlFindings(r, f, false) }, "mysql.version=critical"},
		"galera":                     {func(r *Report) { f := maria; f.galera = "ON"; mysqlFindings(r, f, false) }, "mysql.galera=critical"},
		"galera, rows":               {func(r *Report) { f := maria; f.galera = "ON"; mysqlFindings(r, f, true) }, "mysql.galera=warning"},
		"mariadb, never synced":      {func(r *Report) { f := maria; f.method = "nosync"; mysqlFindings(r, f, false) }, "mysql.durability=warning"},
		"mariadb, synced":            {func(r *Report) { f := maria; f.method = "O_DIRECT"; mysqlFindings(r, f, false) }, "mysql.durability=ok"},
		"mariadb, followed":          {func(r *Report) { f := maria; f.replicas = 1; mysqlFindings(r, f, false) }, "mysql.replicas=warning"},
		"mariadb, crowded":           {func(r *Report) { f := maria; f.connections = 81; mysqlFindings(r, f, false) }, "mysql.connections=warning"},
		"three members":              {func(r *Report) { etcdFindings(r, etcdFacts{voters: 3}) }, "etcd.members=ok etcd.leader=critical"},
		"four members":               {func(r *Report) { etcdFindings(r, etcdFacts{voters: 4}) }, "etcd.members=info"},
		"a silent member":            {func(r *Report) { etcdFindings(r, etcdFacts{voters: 3, silent: []string{"c"}}) }, "etcd.health=warning"},
		"secret alarms":              {func(r *Report) { etcdFindings(r, etcdFacts{voters: 3, denied: true, auth: true}) }, "etcd.alarms=info etcd.auth=ok"},
		"no leader":                  {func(r *Report) { etcdStates(r, []*clientv3.StatusResponse{state("3.6.1", 0, 5, 5)}) }, "etcd.leader=critical etcd.version=ok"},
		"an old member": {func(r *Report) {
			etcdStates(r, []*clientv3.StatusResponse{state("3.6.1", 1, 5, 5), state("3.3.9", 1, 5, 5)})
		}, "etcd.version=critical etcd.leader=ok"},
		"an upgrade": {func(r *Report) {
			etcdStates(r, []*clientv3.StatusResponse{state("3.6.1", 1, 5, 5), state("3.5.9", 1, 5, 5)})
		}, "etcd.version=info"},
		"a secret quota": {func(r *Report) { etcdStates(r, []*clientv3.StatusResponse{state("3.5.9", 1, 5, 5)}) }, "etcd.quota=info"},
		"a laggard":      {func(r *Report) { etcdStates(r, []*clientv3.StatusResponse{state("3.6.1", 1, 5000, 5)}) }, "etcd.apply=warning"},
		"consul without leader": {func(r *Report) {
			consulFindings(r, consulFacts{leader: `""`, servers: 3, healthy: true, may: 1, ttl: DefaultTTL})
		}, "consul.leader=critical consul.health=ok"},
		"short sessions": {func(r *Report) { consulFindings(r, consulFacts{leader: "x", servers: 3, may: 1, ttl: time.Second}) }, "consul.session=critical consul.health=warning"},
		"a secretive agent": {func(r *Report) {
			consulFindings(r, consulFacts{leader: "x", servers: 3, health: errNoEntry, sessions: errNoEntry})
		}, "consul.session=info consul.health=info"},
		"two servers": {func(r *Report) {
			zookeeperFindings(r, zookeeperFacts{versions: []string{"3.8.0"}, members: 2, synced: 1})
		},
			"zookeeper.ensemble=warning zookeeper.session=info zookeeper.health=ok"},
		"a lost follower": {func(r *Report) {
			zookeeperFindings(r, zookeeperFacts{versions: []string{"3.8.0"}, members: 3, synced: 1})
		}, "zookeeper.health=warning"},
		"an old keeper": {func(r *Report) {
			zookeeperFindings(r, zookeeperFacts{versions: []string{"3.4.14"}, members: 3, synced: 2})
		}, "zookeeper.version=critical zookeeper.health=ok"},
		"a mixed ensemble":             {keepers("3.4.14 follower", "3.8.0 leader"), "zookeeper.version=critical"},
		"a closed keeper":              {keepers("srvr is not executed because it is not in the whitelist."), "zookeeper.version=info zookeeper.ensemble=info zookeeper.health=info"},
		"an unknown number of keepers": {keepers("3.8.0 follower"), "zookeeper.ensemble=info zookeeper.version=ok zookeeper.health=ok"},
		"observers": {func(r *Report) {
			var f zookeeperFacts
			f.read("tickTime=100\nserver.1=a:1:2:participant;3\nserver.2=b:1:2:participant;3\nserver.3=c:1:2:observer;3\n")
			f.synced, f.versions = 1, []string{"3.8.0"}
			zookeeperFindings(r, f)
		}, "zookeeper.ensemble=warning zookeeper.health=ok"},
		"a busy keeper": {func(r *Report) {
			zookeeperFindings(r, zookeeperFacts{versions: []string{"3.8.0"}, members: 3, synced: 2, waiting: 101})
		}, "zookeeper.load=warning"},
	} {
		var r Report
		c.look(&r)
		for _, pair := range strings.Fields(c.want) {
			if id, want, _ := strings.Cut(pair, "="); severityOf(r, id) != want {
				t.Errorf("%s: %s is %s, want %s", name, id, severityOf(r, id), want)
			}
		}
	}
}

// keepers returns the findings of servers that answer srvr with a version and a mode, or with a text.
func keepers(all ...string) func(*Report) {
	return func(r *Report) {
		f := zookeeperFacts{synced: -1}
		for i, text := range all {
			if words := strings.Fields(text); len(words) == 2 {
				text = "Zookeeper version: " + words[0] + "-abc, built on x\nOutstanding: 0\nMode: " + words[1] + "\n"
			}
			f.add(answers{host: strconv.Itoa(i), srvr: text})
		}
		zookeeperFindings(r, f)
	}
}

// TestEveryFindingHasItsTexts requires that no text is missing or unused.
func TestEveryFindingHasItsTexts(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("*.go")
	testbed.OK(t, err)
	used := map[string]bool{"answers": true, "clock": true, "latency": true, "pause": true}
	for _, file := range files {
		source, err := os.ReadFile(file)
		testbed.OK(t, err)
		if file == "texts.go" || strings.HasSuffix(file, "_test.go") {
			continue
		}
		for _, id := range regexp.MustCompile(`"([a-z]+\.[a-z]+)"`).FindAllStringSubmatch(string(source), -1) {
			if used[id[1]] = true; texts[id[1]].why == "" && kinds[strings.Split(id[1], ".")[0]] != nil {
				t.Errorf("%s: %s has no text", file, id[1])
			}
		}
	}
	for id, text := range texts {
		if !used[id] || text.why == "" || text.do == "" {
			t.Errorf("%s: used %v, %+v", id, used[id], text)
		}
	}
}
