package testbed

import (
	"os"
	"os/exec"
	"testing"
	"time"
)

func TestMain(m *testing.M) { Main(m) }

// starters are the servers under test.
var starters = map[string]func(testing.TB, ...string) *Server{
	"redis": Redis, "etcd": Etcd, "postgres": Postgres, "mariadb": MariaDB,
}

func eachServer(t *testing.T, test func(t *testing.T, start func(testing.TB, ...string) *Server)) {
	for name, start := range starters {
		t.Run(name, func(t *testing.T) { test(t, start) })
	}
}

func TestServersLeaveNothing(t *testing.T) {
	eachServer(t, func(t *testing.T, start func(testing.TB, ...string) *Server) {
		var dir string
		var pid int
		t.Run("use", func(t *testing.T) {
			s := start(t)
			dir, pid = s.dir, s.PID()
			if len(marked(dir)) == 0 {
				t.Fatal("the running server is not found by its mark")
			}
		})
		if dir == "" {
			t.Skip("not started")
		}
		if state(pid) != 0 || len(marked(dir)) > 0 {
			t.Errorf("still running: %d %v", pid, marked(dir))
		}
		if _, err := os.Stat(dir); !os.IsNotExist(err) {
			t.Errorf("directory %s: %v", dir, err)
		}
	})
}

func TestServerLifecycle(t *testing.T) {
	eachServer(t, func(t *testing.T, start func(testing.TB, ...string) *Server) {
		s := start(t)
		addr, first := s.Addr(), s.PID()
		s.Kill()
		if err := s.kind.ready(addr); err == nil {
			t.Fatal("a killed server answers")
		}
		s.Kill() // again: nothing to do
		s.Restart()
		if s.PID() == first || s.Addr() != addr {
			t.Fatalf("restarted as %d at %s, was %d at %s", s.PID(), s.Addr(), first, addr)
		}
		if err := s.kind.ready(addr); err != nil {
			t.Fatalf("after a restart: %v", err)
		}
		s.Restart() // while it runs
		s.Wipe()
		if err := s.kind.ready(addr); err != nil {
			t.Fatalf("after a wipe: %v", err)
		}
	})
}

func TestPausedServerIsSilent(t *testing.T) {
	eachServer(t, func(t *testing.T, start func(testing.TB, ...string) *Server) {
		s := start(t)
		s.Pause()
		for _, pid := range marked(s.dir) {
			if !stopped(pid) {
				t.Errorf("process %d runs on", pid)
			}
		}
		if err := s.kind.ready(s.Addr()); err == nil {
			t.Error("a paused server answers")
		}
		s.Resume()
		Eventually(t, "answer again", bound, func() bool { return s.kind.ready(s.Addr()) == nil })
		s.Pause() // the test ends with a paused server
	})
}

func TestRedisKeepsWhatItIsToldTo(t *testing.T) {
	s := Redis(t, "--appendonly", "yes", "--appendfsync", "always")
	redis(t, s, "SET", "k", "v")
	s.Kill()
	s.Restart()
	if got := redis(t, s, "GET", "k"); got != "$1" {
		t.Errorf("after a restart GET answers %q", got)
	}
	s.Wipe()
	if got := redis(t, s, "GET", "k"); got != "$-1" {
		t.Errorf("after a wipe GET answers %q", got)
	}
}

func TestEtcdKeepsItsData(t *testing.T) {
	s := Etcd(t)
	etcdctl(t, s, "put", "k", "v")
	s.Restart()
	if got := etcdctl(t, s, "get", "--print-value-only", "k"); got != "v\n" {
		t.Errorf("after a restart: %q", got)
	}
	s.Wipe()
	if got := etcdctl(t, s, "get", "--print-value-only", "k"); got != "" {
		t.Errorf("after a wipe: %q", got)
	}
}

func etcdctl(t *testing.T, s *Server, args ...string) string {
	t.Helper()
	cmd := exec.Command(Binary(t, "etcdctl"), append([]string{"--endpoints", s.URL()}, args...)...)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("etcdctl %v: %v", args, err)
	}
	return string(out)
}

func TestPostgresKeepsItsData(t *testing.T) {
	s := Postgres(t)
	query(t, s, "create table t (n int)")
	s.Restart()
	if got := query(t, s, "select count(*) from t"); got != "0" {
		t.Errorf("after a restart: %q", got)
	}
	s.Wipe()
	if got := query(t, s, "select count(*) from pg_tables where tablename = 't'"); got != "0" {
		t.Errorf("after a wipe: %q", got)
	}
}

func TestPostgresTakesSettings(t *testing.T) {
	if got := query(t, Postgres(t), "show fsync"); got != "off" {
		t.Errorf("fsync is %q", got)
	}
	if got := query(t, Postgres(t, "-c", "fsync=on"), "show fsync"); got != "on" {
		t.Errorf("fsync is %q though extra says on", got)
	}
}

func TestServersStartFast(t *testing.T) {
	eachServer(t, func(t *testing.T, start func(testing.TB, ...string) *Server) {
		start(t) // the first PostgreSQL of a process runs initdb
		best := bound
		for range 5 {
			before := time.Now()
			start(t)
			best = min(best, time.Since(before))
		}
		t.Logf("%v", best)
		if best > time.Second {
			t.Errorf("the fastest of 5 starts took %v", best)
		}
	})
}

func TestManyServersAtOnce(t *testing.T) {
	eachServer(t, func(t *testing.T, start func(testing.TB, ...string) *Server) {
		for range 4 {
			t.Run("", func(t *testing.T) {
				t.Parallel()
				s := start(t)
				if err := s.kind.ready(s.Addr()); err != nil {
					t.Error(err)
				}
			})
		}
	})
}
