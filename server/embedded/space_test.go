package embedded

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/interlock-dev/interlock/internal/testbed"
)

// lines is a log that is written and read concurrently.
type lines struct {
	mu  sync.Mutex
	out bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.out.Write(p)
}

func (l *lines) has(text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.out.String(), text)
}

// small starts a server with a small quota, which checks its size at the given interval.
func small(t *testing.T, log *lines, check time.Duration) *Server {
	t.Helper()
	s, err := Start(t.Context(), Options{DataDir: t.TempDir(), Listen: "127.0.0.1:0", Quota: 4 << 20,
		Compact: 5 * check, Check: check, Log: slog.New(slog.NewTextHandler(log, nil))})
	testbed.OK(t, err)
	t.Cleanup(s.Close)
	return s
}

const big = 64 << 10 // bytes of a value

// put writes, and repeats while etcd has no space.
func put(t *testing.T, s *Server, key, value string) {
	t.Helper()
	for until := time.Now().Add(time.Minute); ; {
		_, err := s.Client().Put(t.Context(), key, value)
		if err == nil {
			return
		}
		if !errors.Is(err, rpctypes.ErrNoSpace) && !strings.Contains(err.Error(), "no space") || time.Now().After(until) {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// TestHistoryDoesNotFill checks that repeated writes do not use up the quota.
func TestHistoryDoesNotFill(t *testing.T) {
	t.Parallel()
	s := small(t, &lines{}, 20*time.Millisecond)
	value := strings.Repeat("x", big)
	for i := range 200 { // three times the quota
		put(t, s, fmt.Sprint("key", i%4), value)
	}
	put(t, s, "key", "small")
	if st, err := s.Status(t.Context()); err != nil || st.Quota != 4<<20 {
		t.Errorf("%+v, %v", st, err)
	}
}

// TestQuotaComesNear checks that the log and Status warn before etcd refuses writes, and
// while it does. It accepts them again when there is space.
func TestQuotaComesNear(t *testing.T) {
	t.Parallel()
	var log lines
	s := small(t, &log, time.Hour)
	k := &keeper{Server: s}
	check := func() Status {
		t.Helper()
		s.node.Server.Backend().ForceCommit() // sizes are those of the last commit
		testbed.OK(t, k.check(t.Context()))
		st, err := s.Status(t.Context())
		testbed.OK(t, err)
		return st
	}
	keys := 0
	fill := func() error {
		keys++
		_, err := s.Client().Put(t.Context(), fmt.Sprint("key", keys), strings.Repeat("x", big))
		return err
	}
	for !log.has("the quota is nearly used up") {
		if err := fill(); err != nil {
			t.Fatalf("refused before it was near: %v: %s", err, &log.out)
		}
		check()
	}
	for !log.has("writes are refused") { // defragmenting frees space a few times
		err := fill()
		for ; err == nil; err = fill() {
		}
		if st := check(); !errors.Is(err, rpctypes.ErrNoSpace) || st.Full != log.has("writes are refused") {
			t.Fatalf("%v, %+v: %s", err, st, &log.out)
		}
	}
	full := dataFile(t, s)
	for range 3 {
		if st := check(); !os.SameFile(full, dataFile(t, s)) {
			t.Fatalf("it was defragmented again, although nothing was deleted: %+v", st)
		}
	}
	if _, err := s.Client().Delete(t.Context(), "key", clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	if st := check(); st.Full || st.Near || !log.has("writes are accepted again") {
		t.Fatalf("%+v: %s", st, &log.out)
	}
	if err := fill(); err != nil {
		t.Error(err)
	}
}

// dataFile returns the file of the data, which defragmenting replaces.
func dataFile(t *testing.T, s *Server) os.FileInfo {
	t.Helper()
	info, err := os.Stat(filepath.Join(s.options.DataDir, "member", "snap", "db"))
	testbed.OK(t, err)
	return info
}

// TestAFailedWriteReleasesTheDirectory sets a limit of the whole process, so it is not parallel.
func TestAFailedWriteReleasesTheDirectory(t *testing.T) {
	dir := t.TempDir()
	var limit syscall.Rlimit
	testbed.OK(t, syscall.Getrlimit(syscall.RLIMIT_FSIZE, &limit))
	testbed.OK(t, syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Max: limit.Max}))
	_, refused := lockDir(dir)
	testbed.OK(t, syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit))
	l, err := lockDir(dir)
	if !errors.Is(refused, syscall.EFBIG) || err != nil {
		t.Fatalf("%v without space, then %v", refused, err)
	}
	l.release()
}

func TestPays(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	for _, c := range []struct {
		st   Status
		want bool
	}{
		{Status{Size: 32 * mib, InUse: mib, Quota: DefaultQuota}, false},
		{Status{Size: 100 * mib, InUse: 40 * mib, Quota: DefaultQuota}, true},
		{Status{Size: 100 * mib, InUse: 60 * mib, Quota: DefaultQuota}, false},
		{Status{Size: 2000 * mib, InUse: 900 * mib, Quota: DefaultQuota}, false},
		{Status{Size: 7800 * mib, InUse: 3900 * mib, Quota: DefaultQuota}, true},
		{Status{Size: 7800 * mib, InUse: 7700 * mib, Quota: DefaultQuota}, false},
	} {
		if got := pays(c.st); got != c.want {
			t.Errorf("%+v: %v", c.st, got)
		}
	}
}
