package testbed

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// redisCLI runs one command of redis-cli on a server.
func redisCLI(addr string, command ...string) (string, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "", err
	}
	cmd := exec.Command("redis-cli", append([]string{"-h", host, "-p", port}, command...)...)
	out, err := cmd.CombinedOutput()
	text := strings.TrimSpace(string(out))
	if err == nil && (strings.HasPrefix(text, "ERR ") || strings.HasPrefix(text, "(error)")) {
		err = fmt.Errorf("%v: %s", command, text)
	}
	return text, err
}

// Sentinel starts a Redis Sentinel, alone, that watches the master at an address
// under the name "main", with the least patience that works: it fails over about a
// second after the master went. The master's replicas find themselves.
// extra are lines of its configuration.
func Sentinel(tb testing.TB, master *Server, extra ...string) *Server {
	tb.Helper()
	path, err := exec.LookPath("redis-server")
	if err != nil {
		missing(tb, "redis", err)
	}
	host, number, _ := net.SplitHostPort(master.Addr())
	return launch(tb, kind{
		name:  "redis",
		url:   "redis://%s?master_set=main",
		ports: 1,
		ready: pingRedis,
		prepare: func(data string) error {
			lines := []string{"sentinel monitor main " + host + " " + number + " 1",
				"sentinel down-after-milliseconds main 500", "sentinel failover-timeout main 2000"}
			lines = append(lines, extra...)
			return os.WriteFile(filepath.Join(data, "sentinel.conf"), []byte(strings.Join(lines, "\n")+"\n"), 0o600)
		},
		command: func(data string, ports []*port) []string {
			return []string{path, filepath.Join(data, "sentinel.conf"), "--sentinel", "--port", ports[0].String(), "--bind", "127.0.0.1"}
		},
	}, nil)
}

// Replica starts a Redis server that follows master, and returns when it has its data.
func Replica(tb testing.TB, master *Server, extra ...string) *Server {
	tb.Helper()
	host, port, _ := net.SplitHostPort(master.Addr())
	s := Redis(tb, append([]string{"--replicaof", host, port, "--repl-ping-replica-period", "1"}, extra...)...)
	Eventually(tb, "the replica follows", bound, func() bool {
		text, err := redisCLI(s.Addr(), "INFO", "replication")
		return err == nil && strings.Contains(text, "master_link_status:up")
	})
	return s
}

// A Cluster is a Redis Cluster of three masters; server i+3 is the replica of i, if it
// has replicas.
type Cluster struct{ Servers []*Server }

// RedisCluster starts one, and returns when every server sees all slots served.
func RedisCluster(tb testing.TB, replicas bool, extra ...string) *Cluster {
	tb.Helper()
	c := &Cluster{}
	n := 3
	if replicas {
		n = 6
	}
	for range n {
		c.Servers = append(c.Servers, Redis(tb, append([]string{"--cluster-enabled", "yes", "--cluster-node-timeout", "1500",
			"--cluster-replica-validity-factor", "0", "--repl-ping-replica-period", "1"}, extra...)...))
	}
	for i := range 3 {
		c.must(tb, i, "CLUSTER", "ADDSLOTSRANGE", fmt.Sprint(16384*i/3), fmt.Sprint(16384*(i+1)/3-1))
	}
	for i := 1; i < n; i++ {
		host, port, _ := net.SplitHostPort(c.Servers[i].Addr())
		c.must(tb, 0, "CLUSTER", "MEET", host, port)
	}
	for i := 3; i < n; i++ {
		id := c.must(tb, i-3, "CLUSTER", "MYID")
		Eventually(tb, "a replica knows its master", bound, func() bool {
			_, err := redisCLI(c.Servers[i].Addr(), "CLUSTER", "REPLICATE", id)
			return err == nil
		})
	}
	c.Settled(tb, n)
	return c
}

// Settled waits until every server of those that run knows so many, all slots are
// served, and replicas follow.
func (c *Cluster) Settled(tb testing.TB, known int) {
	tb.Helper()
	for _, s := range c.Servers {
		Eventually(tb, "the cluster is settled", 2*bound, func() bool {
			if s.Ended() {
				return true
			}
			text, err := redisCLI(s.Addr(), "CLUSTER", "INFO")
			replication, _ := redisCLI(s.Addr(), "INFO", "replication")
			return err == nil && strings.Contains(text, "cluster_state:ok") &&
				strings.Contains(text, fmt.Sprintf("cluster_known_nodes:%d", known)) &&
				!strings.Contains(replication, "master_link_status:down")
		})
	}
}

// URL names the cluster by its first server.
func (c *Cluster) URL() string { return "redis://" + c.Servers[0].Addr() + "?cluster=true" }

// Migrate begins to move a slot from one master to another, and returns what finishes
// it: until then its keys are in both.
func (c *Cluster) Migrate(tb testing.TB, slot, from, to int) (finish func()) {
	tb.Helper()
	source, target := c.must(tb, from, "CLUSTER", "MYID"), c.must(tb, to, "CLUSTER", "MYID")
	text := fmt.Sprint(slot)
	c.must(tb, to, "CLUSTER", "SETSLOT", text, "IMPORTING", source)
	c.must(tb, from, "CLUSTER", "SETSLOT", text, "MIGRATING", target)
	host, port, _ := net.SplitHostPort(c.Servers[to].Addr())
	return func() {
		tb.Helper()
		for {
			keys := strings.Fields(c.must(tb, from, "CLUSTER", "GETKEYSINSLOT", text, "100"))
			if len(keys) == 0 {
				break
			}
			if text := c.must(tb, from, append([]string{"MIGRATE", host, port, "", "0", "5000", "KEYS"}, keys...)...); text != "OK" {
				tb.Fatalf("migrate %q: %s", keys, text)
			}
		}
		for _, i := range []int{to, from, 3 - to - from} {
			c.must(tb, i, "CLUSTER", "SETSLOT", text, "NODE", target)
		}
	}
}

func (c *Cluster) must(tb testing.TB, i int, command ...string) string {
	tb.Helper()
	text, err := redisCLI(c.Servers[i].Addr(), command...)
	if err != nil {
		tb.Fatalf("redis-cli %v on server %d: %v %s", command, i, err, text)
	}
	return text
}

// Ended reports whether the server was killed or ended by itself.
func (s *Server) Ended() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proc == nil || s.proc.ended()
}

// SentinelKnows waits until a sentinel knows so many replicas that can take over.
func SentinelKnows(tb testing.TB, sentinel *Server, replicas int) {
	tb.Helper()
	Eventually(tb, "the sentinel knows the replicas", bound, func() bool {
		text, err := redisCLI(sentinel.Addr(), "SENTINEL", "REPLICAS", "main")
		return err == nil && strings.Count(text, "slave-repl-offset") == replicas && strings.Contains(text, "\nok\n")
	})
}
