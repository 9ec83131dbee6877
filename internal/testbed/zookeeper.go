package testbed

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// ZooKeeper starts a standalone server with a tick of 100 ms, which allows sessions of
// 500 ms, and returns when it serves. It does not fsync, which a kill of the process
// does not need. extra are lines of its configuration, "key=value", or properties for
// Java, "-Dkey=value". It takes about half a second.
func ZooKeeper(tb testing.TB, extra ...string) *Server {
	tb.Helper()
	z := zookeeperFor(tb, extra)
	k := z.kind("zookeeper", "", serving)
	k.archives = true
	return launch(tb, k, nil)
}

// ZooKeeperEnsemble starts n servers and returns when all of them serve.
func ZooKeeperEnsemble(tb testing.TB, n int, extra ...string) *Ensemble {
	tb.Helper()
	z := zookeeperFor(tb, append([]string{"initLimit=50", "syncLimit=20"}, extra...))
	var peers []string
	for i := range 2 * n {
		p := reserve(tb, "zookeeper")
		if peers = append(peers, p.addr()); i%2 == 0 {
			continue
		}
		id, quorum, election := i/2+1, peers[i-1], p.String()
		z.lines = append(z.lines, fmt.Sprintf("server.%d=%s:%s", id, quorum, election))
	}
	e := &Ensemble{tb: tb, serves: serving, leads: func(addr string) bool {
		answer, err := FourLetterWord(addr, "srvr")
		return err == nil && strings.Contains(answer, "Mode: leader")
	}}
	for i := range n {
		// a single server answers, but does not serve before it has found others
		e.Peers = append(e.Peers, launch(tb, z.kind("zookeeper", fmt.Sprint(i+1), answering), nil))
	}
	e.Wait()
	return e
}

// FourLetterWord requests one of a ZooKeeper server's reports: "srvr", "mntr",
// "wchs".
func FourLetterWord(addr, word string) (string, error) {
	conn, err := dial(addr)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if _, err := conn.Write([]byte(word)); err != nil {
		return "", err
	}
	answer, err := io.ReadAll(conn)
	return string(answer), err
}

func answering(addr string) error {
	answer, err := FourLetterWord(addr, "srvr")
	if err == nil && answer == "" {
		err = fmt.Errorf("srvr answered nothing")
	}
	return err
}

func serving(addr string) error {
	answer, err := FourLetterWord(addr, "srvr")
	if err == nil && !strings.Contains(answer, "Mode:") {
		err = fmt.Errorf("srvr answered %q", answer)
	}
	return err
}

// zookeeper is the configuration of its servers.
type zookeeper struct {
	java, jar    string
	lines, flags []string
}

func zookeeperFor(tb testing.TB, extra []string) *zookeeper {
	tb.Helper()
	z := &zookeeper{java: onPath(tb, "java", "zookeeper"), jar: "/usr/share/java/zookeeper.jar"}
	if jar := os.Getenv("INTERLOCK_ZOOKEEPER"); jar != "" {
		z.jar = jar
	}
	if _, err := os.Stat(z.jar); err != nil {
		missing(tb, "zookeeper", err)
	}
	for _, x := range extra {
		if strings.HasPrefix(x, "-D") {
			z.flags = append(z.flags, x)
		} else {
			z.lines = append(z.lines, x)
		}
	}
	return z
}

// kind returns one server; id is its number in an ensemble, or empty.
func (z *zookeeper) kind(name, id string, ready func(addr string) error) kind {
	return kind{
		name:  name,
		url:   "%s",
		ports: 1,
		ready: ready,
		command: func(data string, ports []*port) []string {
			// the server reports a missing file
			_ = z.configure(data, id, ports[0])
			argv := jvm(z.java, z.jar, "-Xmx128m", "-XX:-UsePerfData", "-Xlog:disable",
				"-Dzookeeper.forceSync=no", "-Dzookeeper.admin.enableServer=false")
			argv = append(argv, z.flags...)
			return append(argv, "org.apache.zookeeper.server.quorum.QuorumPeerMain",
				filepath.Join(data, "zoo.cfg"))
		},
	}
}

func (z *zookeeper) configure(data, id string, client *port) error {
	lines := []string{
		"tickTime=100", "minSessionTimeout=500", "maxSessionTimeout=60000", "maxClientCnxns=0",
		"dataDir=" + filepath.Join(data, "tree"), "clientPort=" + client.String(), "clientPortAddress=127.0.0.1",
		"4lw.commands.whitelist=*",
	}
	if err := os.MkdirAll(filepath.Join(data, "tree"), 0o700); err != nil {
		return err
	}
	if id != "" {
		if err := os.WriteFile(filepath.Join(data, "tree", "myid"), []byte(id), 0o600); err != nil {
			return err
		}
	}
	lines = append(lines, z.lines...)
	return os.WriteFile(filepath.Join(data, "zoo.cfg"), []byte(strings.Join(lines, "\n")+"\n"), 0o600)
}
