package backend_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/backend"
	_ "github.com/interlock-dev/interlock/driver/consul"
	_ "github.com/interlock-dev/interlock/driver/mysql"
	_ "github.com/interlock-dev/interlock/driver/postgres"
	_ "github.com/interlock-dev/interlock/driver/redis"
	_ "github.com/interlock-dev/interlock/driver/zookeeper"
	"github.com/interlock-dev/interlock/internal/testbed"
)

func TestMain(m *testing.M) { testbed.Main(m) }

// open connects for one test.
func open(t *testing.T, url string) *backend.Backend {
	t.Helper()
	b, err := backend.Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return b
}

// TestOpen requires that a URL opens the same as the driver's own constructors, on each
// system.
func TestOpen(t *testing.T) {
	for name, url := range map[string]func(t *testing.T) string{
		"memory":    func(t *testing.T) string { return "memory://open" },
		"redis":     func(t *testing.T) string { return testbed.Redis(t).URL() },
		"postgres":  func(t *testing.T) string { return testbed.Postgres(t).URL() },
		"table":     func(t *testing.T) string { return testbed.Postgres(t).URL() + "&mode=table&namespace=other" },
		"mysql":     func(t *testing.T) string { return "mysql://root@" + testbed.MariaDB(t).Addr() + "/test" },
		"zookeeper": func(t *testing.T) string { return "zookeeper://" + testbed.ZooKeeper(t).Addr() + "/a" },
		"consul":    func(t *testing.T) string { return "consul://" + testbed.Consul(t).Addr() },
	} {
		t.Run(name, func(t *testing.T) {
			at := url(t)
			at += map[bool]string{true: "&", false: "?"}[strings.Contains(at, "?")] + "ttl=7s&prefix=app/"
			b := open(t, at)
			l, err := b.Fenced(t.Context(), backend.LockOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if ttl := l.Guarantees().TTL; ttl != 7*time.Second {
				t.Errorf("claims live for %v; want the ttl of the URL", ttl)
			}
			g, err := l.Acquire(t.Context(), driver.Request{Name: "job", Owner: "a", NoWait: true})
			if err != nil || g.Token == 0 {
				t.Fatalf("acquire: %+v, %v", g, err)
			}
			v, err := b.View(t.Context(), backend.LockOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if state, err := v.Lock(t.Context(), "job"); err != nil || state.Holder == nil || state.Holder.Owner != "a" {
				t.Errorf("the view shows %+v, %v", state, err)
			}
			if err := l.Release(t.Context(), "job", "a"); err != nil {
				t.Error(err)
			}
			abilities(t, b, g.Token)
		})
	}
}

// abilities tries the features of a backend beside locks.
func abilities(t *testing.T, b *backend.Backend, token interlock.Token) {
	t.Helper()
	has := map[backend.Ability]bool{}
	_, has[backend.Values] = b.Connection().(backend.ValueKeeper)
	_, has[backend.Journals] = b.Connection().(backend.JournalKeeper)
	_, has[backend.Guards] = b.Connection().(backend.Fencer)
	_, has[backend.Tables] = b.Connection().(backend.Database)
	_, has[backend.Participants] = b.Connection().(backend.Preparer)
	for ability, ok := range has {
		if b.URL().Has(ability) != ok {
			t.Errorf("ability %b is registered: %v, implemented: %v", ability, !ok, ok)
		}
	}
	if b.URL().Has(backend.Values) {
		values, err := b.Values(t.Context(), "")
		if err == nil {
			err = values.Put(t.Context(), "v", driver.Value{Token: token, Data: []byte("x")})
		}
		if err != nil {
			t.Errorf("values: %v", err)
		}
	} else if _, err := b.Values(t.Context(), ""); interlock.Kind(err) != interlock.Definite {
		t.Errorf("values of a backend without: %v", err)
	}
	if k, ok := b.KeyValues(""); ok {
		if revision, err := k.Swap(t.Context(), driver.Swap{Key: "k", Value: []byte("x")}); err != nil || revision == 0 {
			t.Errorf("a swap of keys: %d, %v", revision, err)
		}
	}
	if f, ok := b.Fence("app/"); ok {
		if err := f.Enter(t.Context(), driver.Raise{Resource: "r", Token: token}); err != nil {
			t.Errorf("fence: %v", err)
		}
	}
	if db, ok := b.SQL(); ok {
		tx, err := db.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var one int
		err = tx.Native().Query(t.Context(), "select 1", nil, func(scan func(...any) error) error { return scan(&one) })
		if err != nil || one != 1 {
			t.Errorf("sql: %d, %v", one, err)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// TestFailedOpening: what cannot be opened is nil, not an interface with a nil pointer.
func TestFailedOpening(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, url := range []string{"postgres://127.0.0.1:1/a", "postgres://127.0.0.1:1/a?mode=table", "mysql://u@127.0.0.1:1/a", "mysql://u@127.0.0.1:1/a?mode=table",
		"redis://127.0.0.1:1?mode=plain", "redis://127.0.0.1:1", "consul://127.0.0.1:1", "zookeeper://127.0.0.1:1/a"} {
		u, err := backend.Parse(url)
		if err != nil {
			t.Fatal(err)
		}
		b, err := u.Open(t.Context())
		if err != nil { // redis connects at once
			continue
		}
		l, err := b.Fenced(ctx, backend.LockOptions{})
		v, failed := b.View(ctx, backend.LockOptions{})
		p, refused := b.Participant(ctx, "shop")
		if l != nil || v != nil || p != nil || err == nil || failed == nil || refused == nil {
			t.Errorf("%s: %v, %v, %v; %v, %v, %v", url, l, v, p, err, failed, refused)
		}
		if err := b.Close(context.Background()); err != nil {
			t.Errorf("%s: %v", url, err)
		}
	}
}

// TestCloseEnds: Close ends with its context, and without one soon, although the server is silent.
func TestCloseEnds(t *testing.T) {
	server := testbed.Postgres(t)
	for name, limit := range map[string]time.Duration{"with its context": 100 * time.Millisecond, "by its own bound": time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := testbed.NewProxy(t, server.Addr())
			b, err := backend.Open(t.Context(), strings.Replace(server.URL(), server.Addr(), path.Addr(), 1))
			testbed.OK(t, err)
			db, _ := b.SQL()
			tx, err := db.Begin(t.Context())
			testbed.OK(t, err)
			path.DropReplies()
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			defer cancel()
			if _, err := tx.Exec(ctx, "SELECT 1"); err == nil {
				t.Error("a silent server answered")
			}
			_ = tx.Rollback(ctx)
			bound, end := context.WithTimeout(t.Context(), limit)
			defer end()
			began := time.Now()
			if err := b.Close(bound); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("it returned %v", err)
			}
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("it took %v", took)
			}
			path.Heal()
		})
	}
}

// TestProbeAsksAllServers: the first server accepts a connection and says nothing, as one that hangs.
func TestProbeAsksAllServers(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	testbed.OK(t, err)
	defer silent.Close()
	well := httptest.NewTLSServer(http.NotFoundHandler())
	defer well.Close()
	trusting := well.Client().Transport.(*http.Transport).TLSClientConfig
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if err := backend.Probe(ctx, []string{silent.Addr().String(), well.Listener.Addr().String()}, trusting); err != nil {
		t.Errorf("one of two servers answers, and it returned %v", err)
	}
	if err := backend.Probe(t.Context(), []string{"127.0.0.1:1", "127.0.0.1:2"}, nil); !errors.Is(err, syscall.ECONNREFUSED) || !strings.Contains(err.Error(), ":1:") {
		t.Errorf("no server listens, and it returned %v", err)
	}
}

// TestNothingIsPrinted requires that a URL and its errors show no password or client option.
func TestNothingIsPrinted(t *testing.T) {
	u, err := backend.Parse("redis://u:s3cret@127.0.0.1:1/0?client_name=s3cret&ttl=5s")
	if err != nil {
		t.Fatal(err)
	}
	if text := fmt.Sprintf("%v %+v %#v %s", u, u, u, u); strings.Contains(text, "s3cret") || !strings.Contains(text, "ttl=5s") {
		t.Errorf("it prints as %s", text)
	}
	for _, url := range []string{"redis://u:s3cret@127.0.0.1:1", "redis://u:s3cret/x@h", "postgres://u:s3cret@h/d?s3cret=1%zz", "kafka://u:s3cret@h"} {
		if _, err := backend.Open(t.Context(), url); err == nil || strings.Contains(err.Error(), "s3cret@") {
			t.Errorf("%s: %v", url, err)
		}
	}
}

// TestUnknown: a scheme without a driver names the import; an unknown one lists the known.
func TestUnknown(t *testing.T) {
	for url, want := range map[string]string{
		"etcd://h":    `import _ "github.com/interlock-dev/interlock/driver/etcd"`,
		"nosuch://h":  `no backend is called "nosuch"; known are consul://host:port, memory://name, mysql://`,
		"localhost:1": "not a URL",
	} {
		var wrong *backend.URLError
		if _, err := backend.Parse(url); !errors.As(err, &wrong) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %s", url, err, want)
		}
	}
}
