package proxy_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/redis"
	"github.com/interlock-dev/interlock/guard/fence"
	"github.com/interlock-dev/interlock/guard/proxy"
	"github.com/interlock-dev/interlock/internal/testbed/crash"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

// Places where an owner waits for a line before it continues.
const (
	nowhere  = "nowhere"
	ready    = "ready"    // entered, and about to send
	socket   = "socket:"  // after the last look, before the system call, for the file that is named behind
	careless = "careless" // ready, and then sends without another look
	dies     = "dies"     // kills itself when the call was answered
)

// owner makes one call, and prints its outcome. Its arguments are the
// database's client, or "redis", and URL, the API's, a token, how long its claim
// lasts, whether the claim is stubborn, and a place.
func owner(ctx context.Context, _ *crash.Points, args []string) error {
	place, file := args[6], ""
	if f, ok := strings.CutPrefix(place, socket); ok {
		file = f
	}
	calls, closed, err := connect(ctx, args[0], args[1], file != "")
	if err != nil {
		return err
	}
	defer closed()
	n, _ := strconv.Atoi(args[3])
	ttl, _ := time.ParseDuration(args[4])
	c := grant(n, ttl)
	c.stubborn = args[5] == "stubborn"
	base := &http.Transport{DialContext: (&net.Dialer{}).DialContext}
	if file != "" {
		base.DialContext = stopping(file)
	}
	status, err := calls.Do(ctx, c, "api", "operation of "+args[3], func(ctx context.Context, call *proxy.Call) (int, error) {
		var by http.RoundTripper = proxy.NewTransport(&proxy.TransportOptions{Base: base})
		if place == ready || place == careless {
			wait()
		}
		if place == careless {
			by, ctx = http.DefaultTransport, context.WithoutCancel(ctx)
		}
		status, err := post(by, args[2], args[3])(ctx, call)
		if place == dies {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
		return status, err
	})
	fmt.Println(status, err)
	return nil
}

// connect makes a caller. One that is late believes in its session until it
// has written: the one order of things in which the stop that remains is seen.
func connect(ctx context.Context, client, url string, late bool) (c *proxy.Caller, closed func(), err error) {
	if client == "redis" {
		conn, err := redis.Dial(url)
		if err != nil {
			return nil, nil, err
		}
		return proxy.NewUnrecorded(fence.NewStore(redis.NewFence(conn)), nil), conn.Close, nil
	}
	db, closed, err := databases.Connect(ctx, client, url)
	if err != nil {
		return nil, nil, err
	}
	begin := driver.Beginner[driver.SQL](db)
	if late {
		begin = paced{begin, func() { <-written }}
	}
	c, err = proxy.NewRecorded(begin, fence.Table{}, proxy.Calls{}, nil)
	return c, closed, err
}

// paced does beat in place of the statements that keep a session.
type paced struct {
	driver.Beginner[driver.SQL]
	beat func()
}

func (p paced) Begin(ctx context.Context) (driver.Tx[driver.SQL], error) {
	tx, err := p.Beginner.Begin(ctx)
	return pacedTx{tx, p.beat}, err
}

type pacedTx struct {
	driver.Tx[driver.SQL]
	beat func()
}

func (t pacedTx) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	if query == "select 1" {
		t.beat()
		return 0, nil
	}
	return t.Tx.Exec(ctx, query, args...)
}

// written is closed once stopping has written.
var written = make(chan struct{})

var input = bufio.NewReader(os.Stdin)

// wait says that it waits, and does so until a line comes.
func wait() {
	fmt.Println("waiting")
	_, _ = input.ReadString('\n')
}

// stopping dials connections that wait for a file directly before their first write.
func stopping(file string) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		return &stopped{Conn: c, file: file}, err
	}
}

type stopped struct {
	net.Conn
	file string
	once sync.Once
}

func (s *stopped) Write(p []byte) (int, error) {
	first := false
	s.once.Do(func() {
		fmt.Println("waiting")
		for _, err := os.Stat(s.file); err != nil; _, err = os.Stat(s.file) {
		}
		first = true
	})
	n, err := s.Conn.Write(p)
	if first {
		close(written)
	}
	return n, err
}

// worker makes one call, with points before and after each external effect. It also
// ends if the call was made before, or is in doubt.
func worker(ctx context.Context, at *crash.Points, args []string) error {
	db, closed, err := databases.Connect(ctx, args[0], args[1])
	if err != nil {
		return err
	}
	defer closed()
	// How many statements keep the session depends on how long the call takes, so
	// they are no points; the claim lasts long enough without any.
	points := paced{crash.Beginner[driver.SQL](db, at), func() {}}
	calls, err := proxy.NewRecorded(points, fence.Table{}, proxy.Calls{}, &proxy.Options{Repeat: args[3] == "repeat"})
	if err != nil {
		return err
	}
	by := proxy.NewTransport(&proxy.TransportOptions{KeyHeader: "Idempotency-Key"})
	_, err = calls.Do(ctx, grant(2, time.Minute), "api", "payout", func(ctx context.Context, call *proxy.Call) (int, error) {
		at.Pass()
		defer at.Pass()
		return post(by, args[2], "pay")(ctx, call)
	})
	var done *proxy.DoneError
	var doubt *proxy.InDoubtError
	if errors.As(err, &done) || errors.As(err, &doubt) {
		return nil
	}
	return err
}
