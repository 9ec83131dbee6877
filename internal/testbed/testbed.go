// Package testbed runs real servers for tests: Redis, etcd, PostgreSQL, PgBouncer, MariaDB,
// ZooKeeper, Kafka, NATS, Consul, kube-apiserver and an emulator of SQS. They are child processes
// on loopback, in their own directories. A TCP proxy breaks the path to them. It does not isolate
// a test from the machine: a slow disk or a busy processor has an effect. Except for SQS, it never
// simulates a server.
//
//	func TestAgainstRedis(t *testing.T) {
//		server := testbed.Redis(t, "--appendonly", "yes")
//		proxy := testbed.NewProxy(t, server.Addr())
//		client := dial(t, proxy.Addr())
//		proxy.DropReplies() // from now on every outcome is unknown
//		…
//		server.Kill()
//		server.Restart() // same address, same data
//	}
//
// If the program of a server is missing, the test is skipped, with one line on how to get it. It
// fails instead if the environment variable INTERLOCK_REQUIRE names the program in its comma list.
// The names are redis, etcd, etcdctl, postgres, pgbouncer, mariadb, zookeeper, kafka, nats-server,
// consul, kube-apiserver, and the peers elasticmq, redis-py, kazoo and curator. Under -short every
// test that needs a server or a tool is skipped.
//
// The testbed leaves nothing, even if the test process is killed. Three mechanisms ensure that.
// The first is tb.Cleanup. On Linux the kernel kills a child when the thread that started it ends.
// And a small shell process waits for the end of the test process, kills all processes with its
// mark and removes its directory. The mark is the environment variable INTERLOCK_TESTBED, which
// children inherit, or a working directory inside ours. Finding marked processes needs /proc;
// without it only orderly clean-up and process groups remain.
//
// Methods end the test by tb.Fatal if they fail, so call them on the test's own
// goroutine.
package testbed
