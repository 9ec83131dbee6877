package testbed

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
)

// Cluster is a Redis Cluster of three masters. If it has replicas, server i+3 is the
// replica of i.
type Cluster struct {
	Servers []*Server
}

// nodeTimeout is the silence in milliseconds after which a node suspects another.
const nodeTimeout = "1000"

// RedisCluster starts a cluster and returns when every server sees all slots served. That
// takes about two seconds, during which Redis does not let a new master serve.
func RedisCluster(tb testing.TB, replicas bool, extra ...string) *Cluster {
	tb.Helper()
	path := onPath(tb, "redis-server", "redis")
	c := &Cluster{}
	n := 3
	if replicas {
		n = 6
	}
	for range n {
		c.Servers = append(c.Servers, launch(tb, clusterNode(path), extra))
	}
	for i := range 3 {
		c.must(tb, i, "CLUSTER", "ADDSLOTSRANGE", fmt.Sprint(16384*i/3), fmt.Sprint(16384*(i+1)/3-1))
	}
	for _, s := range c.Servers[1:] {
		c.must(tb, 0, "CLUSTER", "MEET", "127.0.0.1", s.ports[0].String(), s.ports[1].String())
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

// clusterNode returns one server of a cluster.
func clusterNode(path string) kind {
	return kind{
		name:  "redis",
		url:   "redis://%s?cluster=true",
		ports: 2,
		ready: pingRedis,
		command: func(data string, ports []*port) []string {
			return []string{path, "--port", ports[0].String(), "--cluster-port", ports[1].String(), "--bind", "127.0.0.1", "--dir", data,
				"--daemonize", "no", "--save", "", "--appendonly", "no", "--cluster-enabled", "yes", "--cluster-node-timeout", nodeTimeout,
				"--cluster-config-file", filepath.Join(data, "nodes.conf"),
				"--cluster-replica-validity-factor", "0", "--repl-ping-replica-period", "1", "--repl-diskless-sync-delay", "0"}
		},
	}
}

// Settled waits until every running server knows the given number of servers, all slots
// are served, and replicas follow.
func (c *Cluster) Settled(tb testing.TB, known int) {
	tb.Helper()
	for _, s := range c.Servers {
		Eventually(tb, "the cluster is settled", 2*bound, func() bool {
			if s.Ended() {
				return true
			}
			cluster, err := bulk(s.Addr(), "CLUSTER INFO")
			if err != nil || !strings.Contains(cluster, "cluster_state:ok") ||
				!strings.Contains(cluster, fmt.Sprintf("cluster_known_nodes:%d", known)) {
				return false
			}
			replication, err := bulk(s.Addr(), "INFO replication")
			return err == nil && !strings.Contains(replication, "master_link_status:down")
		})
	}
}

// bulk makes one request to a Redis server, in the protocol itself, and returns its text.
func bulk(addr, command string) (string, error) {
	conn, err := dial(addr)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, command+"\r\n"); err != nil {
		return "", err
	}
	var length int
	r := bufio.NewReader(conn)
	if _, err := fmt.Fscanf(r, "$%d\r\n", &length); err != nil {
		return "", err
	}
	text := make([]byte, length)
	_, err = io.ReadFull(r, text)
	return string(text), err
}

// Addr returns the address of the first server.
func (c *Cluster) Addr() string { return c.Servers[0].Addr() }

// Addrs returns the addresses of all servers.
func (c *Cluster) Addrs() (all []string) {
	for _, s := range c.Servers {
		all = append(all, s.Addr())
	}
	return all
}

// URL returns the URL of the first server.
func (c *Cluster) URL() string { return c.Servers[0].URL() }

// Migrate starts to move a slot from one master to another and returns a function that
// finishes the move. Until then its keys are on both.
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
			if text := c.must(tb, from, append([]string{"MIGRATE", host, port, "", "0", "5000", "KEYS"}, keys...)...); text != "OK" && text != "NOKEY" { // some may have been deleted meanwhile
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
