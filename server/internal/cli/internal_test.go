package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/virtual"
	"github.com/interlock-dev/interlock/server/embedded"
)

// messages is an output that is written and read concurrently.
type messages struct {
	mu  sync.Mutex
	out bytes.Buffer
}

func (m *messages) Write(p []byte) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.out.Write(p)
}

func (m *messages) has(text string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return strings.Contains(m.out.String(), text)
}

// TestDevReports checks that a slow start is reported and does not fail, and that warnings of the server
// are printed, although the logs of libraries are not.
func TestDevReports(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	defer func(d time.Duration) { devStart = d }(devStart)
	devStart = time.Nanosecond
	var said messages
	signals := make(chan os.Signal, 1)
	o := embedded.Options{Listen: "127.0.0.1:0", Quota: 4 << 20, Check: 20 * time.Millisecond}
	ended := testbed.Later(t, time.Minute, func() error {
		return newApp("interlock", io.Discard, &said).dev(context.Background(), devFlags{o, true}, signals)
	})
	var server embedded.Running
	testbed.Eventually(t, "it serves", time.Minute, func() (ok bool) {
		server, ok = findDev()
		return ok
	})
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{server.Endpoint}})
	testbed.OK(t, err)
	defer client.Close()
	i, value := 0, strings.Repeat("x", 256<<10)
	testbed.Eventually(t, "the quota is reported", time.Minute, func() bool {
		i++
		_, _ = client.Put(t.Context(), fmt.Sprint(i), value) // refused once it is full
		return said.has("the quota is")
	})
	signals <- syscall.SIGTERM
	testbed.OK(t, ended())
	if !said.has("etcd is still starting") {
		t.Error(said.out.String())
	}
}

// refunded is a limit that refuses for an hour, and admits the second call.
type refunded struct{ calls int }

func (r *refunded) Take(context.Context, []driver.LimitCall) []driver.LimitAnswer {
	r.calls++
	return []driver.LimitAnswer{{Decisions: []driver.Decision{{Allowed: r.calls > 1, RetryAfter: time.Hour}}}}
}

// TestLimitWaitSeesRefunds checks that a wait takes units that others give back long before the next ones are due.
func TestLimitWaitSeesRefunds(t *testing.T) {
	t.Parallel()
	virtual.Test(t, func(t *testing.T) {
		begun := time.Now()
		d, err := newApp("interlock", io.Discard, io.Discard).within(time.Second).takeWithin(t.Context(), &refunded{}, driver.Charge{}, 2*time.Hour)
		if took := time.Since(begun); err != nil || !d.Allowed || took > time.Minute {
			t.Errorf("%+v, %v after %v", d, err, took)
		}
	})
}
