package testbed

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

func TestMain(m *testing.M) { Main(m) }

// starters are the servers under test.
var starters = map[string]func(testing.TB, ...string) *Server{
	"redis": Redis, "etcd": Etcd, "postgres": Postgres, "mariadb": MariaDB, "consul": Consul,
}

func eachServer(t *testing.T, test func(t *testing.T, start func(testing.TB, ...string) *Server)) {
	for name, start := range starters {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, start)
		})
	}
}

// TestServers checks that a server keeps its address, and does not answer while it is stopped. It
// leaves nothing, even if the test ends while it is stopped. The suites of the drivers check that
// data survives a Restart and not a Wipe.
func TestServers(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, start func(testing.TB, ...string) *Server) {
		var dir string
		var pid int
		t.Run("use", func(t *testing.T) {
			s := start(t)
			live(t, s)
			pause(t, s)
			if dir, pid = s.dir, s.PID(); len(marked(dir)) == 0 {
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

func live(t *testing.T, s *Server) {
	t.Helper()
	addr, first := s.Addr(), s.PID()
	s.Kill()
	if err := s.kind.ready(addr); err == nil {
		t.Fatal("a killed server answers")
	}
	s.Kill() // again, without effect
	s.Restart()
	if s.PID() == first || s.Addr() != addr {
		t.Fatalf("restarted as %d at %s, was %d at %s", s.PID(), s.Addr(), first, addr)
	}
	if err := s.kind.ready(addr); err != nil {
		t.Fatalf("after a restart: %v", err)
	}
	s.Wipe() // while it runs
	if err := s.kind.ready(addr); err != nil {
		t.Fatalf("after a wipe: %v", err)
	}
}

// pause stops the server and checks that.
func pause(t *testing.T, s *Server) {
	t.Helper()
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
	s.Pause()
}

// TestSharedServer checks that a shared server survives its first test and ends with the process.
func TestSharedServer(t *testing.T) {
	var first *Server
	t.Run("one test", func(t *testing.T) { first = Shared(t, Redis) })
	if first == nil {
		t.Skip("not started")
	}
	if s := Shared(t, Redis); s != first || s.kind.ready(s.Addr()) != nil {
		t.Fatalf("another test has %p, and the first had %p", s, first)
	}
	endShared()
	if state(first.PID()) != 0 || len(marked(first.dir)) > 0 {
		t.Error("it runs after the end")
	}
}

func TestEventually(t *testing.T) {
	looks := 0
	Eventually(t, "the third look", bound, func() bool { looks++; return looks == 3 })
	if looks != 3 {
		t.Errorf("it returned after %d checks, want 3", looks)
	}
	Eventually(t, "what holds already", 0, func() bool { return true })
}

func TestEventuallyNamesWhatDidNotCome(t *testing.T) {
	const limit = 20 * time.Millisecond
	o, began := new(outcome), time.Now()
	func() {
		defer func() { recover() }()
		Eventually(o, "the key is gone", limit, func() bool { return false })
	}()
	if o.failed != "not within 20ms: the key is gone" {
		t.Errorf("failed as %q", o.failed)
	}
	if took := time.Since(began); took < limit {
		t.Errorf("it ended after %v, and had %v", took, limit)
	}
}

// TestATemplateIsMadeOnce checks that all test processes of a user share one template,
// or each creates its own if the cache is not writable.
func TestATemplateIsMadeOnce(t *testing.T) {
	for _, c := range []struct {
		name, cache, made string
	}{
		{"kept", t.TempDir(), "made\n"},
		{"no cache", os.DevNull, "made\nmade\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv("XDG_CACHE_HOME", c.cache)
			log := filepath.Join(t.TempDir(), "log")
			command := func(data, _ string) *exec.Cmd {
				return exec.Command("sh", "-c", `echo made >>"$0"; echo text >"$1/file"`, log, data)
			}
			for range 2 { // two processes
				var one template
				for range 2 { // two servers
					to := t.TempDir()
					if err := one.copyTo(to, "/bin/sh", nil, command); err != nil {
						t.Fatal(err)
					}
					if text, err := os.ReadFile(filepath.Join(to, "file")); string(text) != "text\n" {
						t.Errorf("the copy has %q, %v", text, err)
					}
				}
			}
			if text, _ := os.ReadFile(log); string(text) != c.made {
				t.Errorf("made %q, want %q", text, c.made)
			}
		})
	}
}

// TestStepClock checks that programs of C and of Go read the stepped wall clock, and this
// process does not.
func TestStepClock(t *testing.T) {
	t.Parallel()
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip(err)
	}
	p := Command(t, bash, "-c", `while read; do printf '%(%s)T\n' -1; done`)
	for _, by := range []time.Duration{0, time.Hour, -time.Hour, 0} {
		p.StepClock(by)
		if _, err := p.Stdin().Write([]byte("\n")); err != nil {
			t.Fatal(err)
		}
		seconds, err := strconv.ParseInt(p.Line(bound), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		if ahead := time.Until(time.Unix(seconds, 0)) - by; ahead.Abs() > time.Minute {
			t.Errorf("stepped by %v, it is %v off that", by, ahead)
		}
	}
	server := Etcd(t, "--unsafe-no-fsync")
	server.StepClock(time.Hour)
	answer, err := http.Get(server.URL() + "/health")
	if err != nil {
		t.Fatal(err)
	}
	defer http.DefaultClient.CloseIdleConnections()
	defer answer.Body.Close()
	if date, err := http.ParseTime(answer.Header.Get("Date")); err != nil || time.Until(date) < 50*time.Minute {
		t.Errorf("the server's time is %v (%v)", date, err)
	}
}
