package paths

import (
	"bufio"
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/internal/testbed"
)

func TestMain(m *testing.M) { testbed.Main(m) }

const (
	bound   = 20 * time.Second
	silence = 200 * time.Millisecond // longer than any answer takes
)

// visitor is a client that was led to Redis.
type visitor struct {
	addr   string
	conn   net.Conn
	closed int
}

func (v *visitor) Close(context.Context) error {
	v.closed++
	return nil
}

func visit(t *testing.T, s *Server[*visitor]) *visitor {
	t.Helper()
	v, err := s.Lead(t, func(path *testbed.Proxy) (*visitor, error) { return &visitor{addr: path.Addr()}, nil })
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// stay keeps a connection, which ping uses from now on.
func (v *visitor) stay(t *testing.T) *visitor {
	t.Helper()
	conn, err := net.Dial("tcp", v.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	v.conn = conn
	v.mustReach(t)
	return v
}

// ping makes one request.
func (v *visitor) ping(within time.Duration) error {
	conn := v.conn
	if conn == nil {
		var err error
		if conn, err = net.Dial("tcp", v.addr); err != nil {
			return err
		}
		defer conn.Close()
	}
	conn.SetDeadline(time.Now().Add(within))
	if _, err := conn.Write([]byte("PING\r\n")); err != nil {
		return err
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err == nil && line != "+PONG\r\n" {
		err = errors.New("it answers " + line)
	}
	return err
}

func (v *visitor) mustReach(t *testing.T) {
	t.Helper()
	if err := v.ping(bound); err != nil {
		t.Fatalf("it does not reach the server: %v", err)
	}
}

func (v *visitor) mustNotReach(t *testing.T) {
	t.Helper()
	if err := v.ping(silence); err == nil {
		t.Fatal("it reaches the server")
	}
}

// TestFaults checks that each fault affects existing and new clients, and that both
// work again afterwards.
func TestFaults(t *testing.T) {
	for _, c := range []struct {
		name       string
		begin, end func(*Server[*visitor])
	}{
		{"kill", (*Server[*visitor]).Kill, (*Server[*visitor]).Restart},
		{"kill and wipe", (*Server[*visitor]).Kill, (*Server[*visitor]).Wipe},
		{"pause", (*Server[*visitor]).Pause, (*Server[*visitor]).Resume},
		{"cut", (*Server[*visitor]).Cut, (*Server[*visitor]).Heal},
		{"lost replies", (*Server[*visitor]).DropReplies, (*Server[*visitor]).Heal},
		{"delay", func(s *Server[*visitor]) { s.Delay(bound) }, (*Server[*visitor]).Heal},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := New[*visitor](testbed.Redis(t))
			first, second := visit(t, s), visit(t, s).stay(t)
			first.mustReach(t)
			c.begin(s)
			first.mustNotReach(t)
			second.mustNotReach(t)
			late := visit(t, s)
			late.mustNotReach(t)
			c.end(s)
			for _, v := range []*visitor{first, late, visit(t, s)} {
				v.mustReach(t)
			}
		})
	}
}

// TestComingToAPausedServerIsRefused checks that a new client is refused immediately.
func TestComingToAPausedServerIsRefused(t *testing.T) {
	s := New[*visitor](testbed.Redis(t))
	s.Pause()
	var late net.Error
	if err := visit(t, s).ping(bound); err == nil || errors.As(err, &late) && late.Timeout() {
		t.Fatalf("it got %v", err)
	}
}

func TestCrashIsForGood(t *testing.T) {
	s := New[*visitor](testbed.Redis(t))
	dying, other := visit(t, s), visit(t, s)
	s.Crash(t, dying)
	other.mustReach(t)
	for _, heal := range []func(){s.Heal, s.Restart} {
		heal()
		dying.mustNotReach(t)
		other.mustReach(t)
	}
}

// TestWhatIsOpenedIsClosed: if open fails, its D is not closed and has no path.
func TestWhatIsOpenedIsClosed(t *testing.T) {
	var opened, failed *visitor
	t.Run("use", func(t *testing.T) {
		s := New[*visitor](testbed.Redis(t))
		opened = visit(t, s)
		cause := errors.New("no")
		_, err := s.Lead(t, func(path *testbed.Proxy) (*visitor, error) {
			failed = &visitor{addr: path.Addr()}
			return failed, cause
		})
		if !errors.Is(err, cause) {
			t.Fatalf("got %v", err)
		}
		s.Cut()
		failed.mustReach(t)
	})
	if opened == nil {
		t.Skip("not started")
	}
	if opened.closed != 1 || failed.closed != 0 {
		t.Fatalf("closed %d and %d times", opened.closed, failed.closed)
	}
}
