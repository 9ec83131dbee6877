package embedded

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// lines is a log that is written and read at the same time.
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

func small(t *testing.T, log *lines) *Server {
	t.Helper()
	s, err := Start(t.Context(), Options{DataDir: t.TempDir(), Listen: "127.0.0.1:0", Quota: 16 << 20,
		Compact: 100 * time.Millisecond, Check: 20 * time.Millisecond, Log: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// put writes, as long as etcd has no room again and again.
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

// TestHistoryDoesNotFill: what is written over and over does not use up the quota.
func TestHistoryDoesNotFill(t *testing.T) {
	s := small(t, &lines{})
	value := strings.Repeat("x", 256<<10)
	for i := range 200 { // 50 MiB
		put(t, s, fmt.Sprint("key", i%4), value)
	}
	put(t, s, "key", "small")
	if st, err := s.Status(t.Context()); err != nil || st.Near || st.Quota != 16<<20 {
		t.Errorf("%+v, %v", st, err)
	}
}

// TestQuotaComesNear: it is said before etcd refuses writes, in the log and by Status.
func TestQuotaComesNear(t *testing.T) {
	var log lines
	s := small(t, &log)
	value := strings.Repeat("x", 256<<10)
	for i := 0; ; i++ {
		if st, err := s.Status(t.Context()); err != nil {
			t.Fatal(err)
		} else if st.Near {
			break
		}
		if _, err := s.Client().Put(t.Context(), fmt.Sprint("key", i), value); err != nil {
			t.Fatalf("refused before it was near: %v", err)
		}
	}
	for until := time.Now().Add(time.Minute); !log.has("the quota comes near"); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal("nothing is logged")
		}
	}
}

func TestPays(t *testing.T) {
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
