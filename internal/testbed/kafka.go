package testbed

import (
	_ "embed"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
)

//go:embed testdata/kafka/pom.xml
var kafkaPOM string

// Kafka starts one broker that is its own controller (KRaft) and returns when it has
// registered itself. Topics are created at first use, with four partitions. Group sessions
// last at least 500 ms, or 6 s if the broker assigns partitions. extra are lines of its
// configuration, "key=value". It does not fsync, which a kill of the process does not need.
// It takes about two seconds of processor time.
func Kafka(tb testing.TB, extra ...string) *Server {
	tb.Helper()
	k := newKafka(tb, extra...).kind(2, func(addr string) error { return askBrokers(addr, 1) })
	k.archives = true
	return launch(tb, k, nil)
}

func newKafka(tb testing.TB, extra ...string) kafka {
	tb.Helper()
	jars := Peer(tb, "kafka", regexp.MustCompile(`<kafka>(.*)</kafka>`).FindStringSubmatch(kafkaPOM)[1])
	return kafka{java: onPath(tb, "java", "kafka"), jars: jars, node: 1, extra: extra}
}

func (k kafka) kind(ports int, ready func(addr string) error) kind {
	return kind{name: "kafka", url: "kafka://%s", ports: ports, prepare: k.prepare, command: k.command, ready: ready}
}

// KafkaSASL starts [Kafka] with a second listener, at secure, for clients that log in over TLS.
// They log in by PLAIN with the name and password of a user, or by SCRAM with credentials in the
// broker. ca is the listener's certificate, in PEM.
func KafkaSASL(tb testing.TB, user, password string) (s *Server, secure string, ca []byte) {
	tb.Helper()
	k := newKafka(tb)
	ca, key, err := LoopbackCertificate()
	if err != nil {
		tb.Fatal(err)
	}
	line := func(pem []byte) string { return strings.ReplaceAll(string(pem), "\n", `\n`) }
	k.secure = []string{
		"listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURE:SASL_SSL",
		"ssl.keystore.type=PEM", "ssl.keystore.certificate.chain=" + line(ca), "ssl.keystore.key=" + line(key),
		"sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
		fmt.Sprintf("listener.name.secure.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required user_%s=%q;", user, password),
		"listener.name.secure.scram-sha-256.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;",
		"listener.name.secure.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;",
	}
	s = launch(tb, k.kind(3, func(addr string) error { return askBrokers(addr, 1) }), nil)
	return s, s.ports[1].addr(), ca
}

// KafkaCluster starts n brokers that are also the controllers, and returns when they know each
// other. Topics have up to three replicas, of which two must be in sync. About four seconds after
// a broker is killed, another leads. Restart may return before a broker serves again: see
// [Ensemble.Wait]. See [Kafka] for the rest.
func KafkaCluster(tb testing.TB, n int) *Ensemble {
	tb.Helper()
	k := newKafka(tb, fmt.Sprint("default.replication.factor=", min(3, n)), fmt.Sprint("offsets.topic.replication.factor=", min(3, n)), "min.insync.replicas=2",
		"controller.quorum.election.timeout.ms=500", "controller.quorum.fetch.timeout.ms=1000", "replica.lag.time.max.ms=3000")
	for range n {
		k.voters = append(k.voters, reserve(tb, "kafka").String())
	}
	e := &Ensemble{tb: tb, Peers: make([]*Server, n), serves: func(addr string) error { return askBrokers(addr, uint32(n)) }}
	var starts sync.WaitGroup // start the JVMs in parallel
	for i := range e.Peers {
		k := k
		k.node = i + 1
		starts.Go(func() { e.Peers[i] = launch(tb, k.kind(1, func(string) error { return nil }), nil) }) // a single broker does not serve
	}
	starts.Wait()
	if tb.Failed() {
		tb.FailNow() // a launch failed in its goroutine
	}
	e.Wait()
	return e
}

// kafka is the configuration of a broker.
type kafka struct {
	java, jars string
	node       int
	voters     []string // the ports of controllers; empty: its own
	secure     []string // lines of the listener SECURE, if there is one
	extra      []string
}

func (k kafka) run(class string, args ...string) []string {
	argv := jvm(k.java, filepath.Join(k.jars, "*"), "-Xms64m", "-Xmx256m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error")
	return append(append(argv, class), args...)
}

var kafkaFormat template

// prepare formats the data directory.
func (k kafka) prepare(data string) error {
	jar, err := filepath.Glob(filepath.Join(k.jars, "kafka_*.jar"))
	if err != nil || len(jar) == 0 {
		return fmt.Errorf("no broker is in %s: %w", k.jars, err)
	}
	if err := kafkaFormat.copyTo(data, jar[0], nil, func(data, scratch string) *exec.Cmd {
		file := filepath.Join(scratch, "server.properties")
		if scratch != "" {
			// the tool reports a missing file
			_ = kafka{node: 1}.configure(file, data, "19092", "19093")
		}
		argv := k.run("kafka.tools.StorageTool", "format", "--cluster-id", "AAAAAAAAAAAAAAAAAAAAAQ", "--config", file)
		return exec.Command(argv[0], argv[1:]...)
	}); err != nil || k.node == 1 {
		return err
	}
	directory := base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, "testbed-node-%03d", k.node)) // unique to the node
	return os.WriteFile(filepath.Join(data, "meta.properties"), fmt.Appendf(nil, "version=1\ncluster.id=AAAAAAAAAAAAAAAAAAAAAQ\nnode.id=%d\ndirectory.id=%s\n", k.node, directory), 0o600)
}

func (k kafka) command(data string, ports []*port) []string {
	file := filepath.Join(data, "server.properties")
	controller := ports[len(ports)-1].String()
	if k.voters != nil {
		controller = k.voters[k.node-1]
	}
	if k.secure != nil {
		listeners := fmt.Sprintf("PLAINTEXT://%s,SECURE://%s", ports[0].addr(), ports[1].addr())
		k.extra = append(k.secure, "listeners="+listeners+",CONTROLLER://"+ports[2].addr(), "advertised.listeners="+listeners)
	}
	_ = k.configure(file, data, ports[0].String(), controller) // as in prepare
	return k.run("kafka.Kafka", file)
}

func (k kafka) configure(file, data, client, controller string) error {
	voters := fmt.Sprintf("%d@127.0.0.1:%s", k.node, controller)
	for i, port := range k.voters {
		if i+1 != k.node {
			voters += fmt.Sprintf(",%d@127.0.0.1:%s", i+1, port)
		}
	}
	lines := append([]string{
		"process.roles=broker,controller", fmt.Sprint("node.id=", k.node), "controller.quorum.voters=" + voters,
		"listeners=PLAINTEXT://127.0.0.1:" + client + ",CONTROLLER://127.0.0.1:" + controller,
		"advertised.listeners=PLAINTEXT://127.0.0.1:" + client, "controller.listener.names=CONTROLLER",
		"log.dirs=" + data, "num.partitions=4", "log.cleaner.enable=false", "num.network.threads=1", "num.io.threads=2",
		"offsets.topic.replication.factor=1", "offsets.topic.num.partitions=1",
		"transaction.state.log.replication.factor=1", "transaction.state.log.min.isr=1", "transaction.state.log.num.partitions=1",
		"share.coordinator.state.topic.replication.factor=1", "share.coordinator.state.topic.min.isr=1",
		"group.initial.rebalance.delay.ms=0", "group.min.session.timeout.ms=500",
		"group.consumer.min.session.timeout.ms=500", "group.consumer.session.timeout.ms=6000", // for members whose partitions the broker assigns
		"group.consumer.min.heartbeat.interval.ms=100", "group.consumer.heartbeat.interval.ms=300",
		"broker.session.timeout.ms=3000", "broker.heartbeat.interval.ms=500", // a restarted broker waits for the end of its former session
	}, k.extra...)
	return os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o600)
}

// askBrokers requests the list of brokers in the protocol itself: version 1 of a metadata
// request for no topics.
func askBrokers(addr string, want uint32) error {
	conn, err := dial(addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	const key, version, correlation = 3, 1, 7
	request := []byte{0, 0, 0, 14, 0, key, 0, version, 0, 0, 0, correlation, 0xff, 0xff, 0, 0, 0, 0}
	if _, err := conn.Write(request); err != nil {
		return err
	}
	var answer [12]byte // the length, the correlation, the number of brokers
	if _, err := io.ReadFull(conn, answer[:]); err != nil {
		return err
	}
	if n := binary.BigEndian.Uint32(answer[8:]); n != want {
		return fmt.Errorf("%d brokers have registered", n)
	}
	return nil
}
