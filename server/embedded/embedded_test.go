package embedded_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/server/embedded"
)

func TestMain(m *testing.M) {
	testbed.MainAs(m, "starter", func() { // prints why a node does not start on a directory
		_, err := embedded.Start(context.Background(), embedded.Options{DataDir: os.Args[1], Listen: anyPort})
		fmt.Println(err)
	})
}

const anyPort = "127.0.0.1:0"

func start(t *testing.T, dir string) *embedded.Server {
	t.Helper()
	s, err := embedded.Start(t.Context(), embedded.Options{DataDir: dir, Listen: anyPort})
	testbed.OK(t, err)
	t.Cleanup(s.Close)
	return s
}

func dial(t *testing.T, s *embedded.Server) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{s.Endpoint()}, Logger: zap.NewNop()})
	testbed.OK(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestBothClientsSeeOneStore(t *testing.T) {
	t.Parallel()
	s := start(t, t.TempDir())
	if _, err := s.Client().Put(t.Context(), "key", "value"); err != nil {
		t.Fatal(err)
	}
	c := dial(t, s)
	got, err := c.Get(t.Context(), "key")
	if err != nil || len(got.Kvs) != 1 || string(got.Kvs[0].Value) != "value" {
		t.Fatalf("over the network: %v, %v", got, err)
	}
	if members, err := c.MemberList(t.Context()); err != nil || members.Members[0].ClientURLs[0] != "http://"+s.Endpoint() {
		t.Errorf("it advertises %v, %v", members, err)
	}
}

func TestGrantsLeasesOfOneSecond(t *testing.T) {
	t.Parallel()
	l, err := start(t, t.TempDir()).Client().Grant(t.Context(), 1)
	if err != nil || l.TTL != 1 {
		t.Fatalf("asked for 1 s, granted %v, %v", l, err)
	}
}

func TestDataOutlivesTheServer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first := start(t, dir)
	if _, err := first.Client().Put(t.Context(), "key", "value"); err != nil {
		t.Fatal(err)
	}
	first.Close()
	got, err := start(t, dir).Client().Get(t.Context(), "key")
	if err != nil || len(got.Kvs) != 1 {
		t.Fatalf("after a restart: %v, %v", got, err)
	}
}

func TestCloseDoesNotWaitForOpenWatches(t *testing.T) {
	t.Parallel()
	s := start(t, t.TempDir())
	for range 8 { // a single one often ends before the node waits for it
		<-dial(t, s).Watch(t.Context(), "key", clientv3.WithCreatedNotify())
	}
	begun := time.Now()
	s.Close()
	if took := time.Since(begun); took > 10*time.Second {
		t.Fatalf("closing took %v", took)
	}
}

func TestSecondInstanceOnTheSameData(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := start(t, dir)
	_, err := embedded.Start(t.Context(), embedded.Options{DataDir: dir, Listen: anyPort})
	var inUse *embedded.InUseError
	if !errors.As(err, &inUse) || inUse.Running != (embedded.Running{PID: os.Getpid(), Endpoint: s.Endpoint()}) {
		t.Fatalf("got %v", err)
	}
}

// database creates the file of etcd's data.
func database(t *testing.T, dir string) *os.File {
	t.Helper()
	path := filepath.Join(dir, "member", "snap", "db")
	testbed.OK(t, os.MkdirAll(filepath.Dir(path), 0o700))
	f, err := os.Create(path)
	testbed.OK(t, err)
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// TestDataOfAnotherEtcd checks a directory on which another program runs etcd. Etcd itself would
// wait for it without a limit.
func TestDataOfAnotherEtcd(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	f := database(t, dir)
	testbed.OK(t, syscall.Flock(int(f.Fd()), syscall.LOCK_EX))
	ended := make(chan error, 1)
	go func() {
		s, err := embedded.Start(t.Context(), embedded.Options{DataDir: dir, Listen: anyPort})
		if err == nil {
			s.Close()
		}
		ended <- err
	}()
	select {
	case err := <-ended:
		var inUse *embedded.InUseError
		if !errors.As(err, &inUse) || inUse.DataDir != dir {
			t.Errorf("got %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("it waits for the other one")
		_ = f.Close()
		<-ended
	}
}

// TestDamagedData fails in a goroutine of etcd, which must not end the process.
func TestDamagedData(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if _, err := database(t, dir).WriteString(strings.Repeat("damaged", 10_000)); err != nil {
		t.Fatal(err)
	}
	p := testbed.Command(t, testbed.Self(t, "starter"), dir)
	if state := p.Wait(time.Minute); state.ExitCode() != 0 {
		t.Fatalf("%v: %.300s", state, p.Stderr())
	}
	if got := p.Line(time.Minute); !strings.Contains(got, "failed to open database") {
		t.Errorf("got %s", got)
	}
}

func TestTakenPort(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", anyPort)
	testbed.OK(t, err)
	defer l.Close()
	_, err = embedded.Start(t.Context(), embedded.Options{DataDir: t.TempDir(), Listen: l.Addr().String()})
	var address *embedded.AddressError
	if !errors.As(err, &address) || !errors.Is(err, syscall.EADDRINUSE) || address.Listen != l.Addr().String() {
		t.Fatalf("got %v", err)
	}
}

func TestAFailedStartGivesTheDirectoryBack(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", anyPort)
	testbed.OK(t, err)
	defer l.Close()
	dir := t.TempDir()
	if _, err := embedded.Start(t.Context(), embedded.Options{DataDir: dir, Listen: l.Addr().String()}); err == nil {
		t.Fatal("started on a taken port")
	}
	start(t, dir)
}

func TestWrongAddresses(t *testing.T) {
	t.Parallel()
	for _, listen := range []string{"0.0.0.0:0", ":0", "[::]:0", "192.0.2.1:7460", "example.org:7460", "7460", "",
		"127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:-1", "127.0.0.1:etcd"} {
		_, err := embedded.Start(t.Context(), embedded.Options{DataDir: t.TempDir(), Listen: listen})
		var address *embedded.AddressError
		if !errors.As(err, &address) {
			t.Errorf("%q: got %v", listen, err)
		}
	}
}

// TestNegativeOptions are refused, as others that cannot be met.
func TestNegativeOptions(t *testing.T) {
	t.Parallel()
	for _, o := range []embedded.Options{{Check: -1}, {Compact: -1}, {Quota: -1}} {
		o.DataDir, o.Listen = t.TempDir(), anyPort
		s, err := embedded.Start(t.Context(), o)
		if err == nil {
			s.Close()
			t.Errorf("%+v: it runs", o)
		}
	}
}

func TestFind(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if r, ok := embedded.Find(dir); ok {
		t.Fatalf("found %v where no node ever ran", r)
	}
	s := start(t, dir)
	if r, ok := embedded.Find(dir); !ok || r.Endpoint != s.Endpoint() || r.PID != os.Getpid() {
		t.Fatalf("found %v, %v", r, ok)
	}
	s.Close()
	if r, ok := embedded.Find(dir); ok {
		t.Fatalf("found %v after it was closed", r)
	}
}

func TestStartEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	dir := t.TempDir()
	if s, err := embedded.Start(ctx, embedded.Options{DataDir: dir, Listen: anyPort}); err == nil {
		s.Close() // it may be ready before the context is checked
	} else if !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	start(t, dir)
}
