package crash

import (
	"bufio"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/interlock-dev/interlock/internal/testbed"
)

// each is the point of a child that stops at every point.
const each = "each"

// atPrefix begins the line in which the child reports a point; onward and home are the answers.
const (
	atPrefix = "crash: at a point"
	onward   = "to the next"
	home     = "to the end"
)

// Walk runs a process from point to point. While it waits at one, no goroutine passes another
// point, but other work continues. Between Pause and Resume everything stops.
type Walk struct {
	tb   testing.TB
	role string
	*testbed.Process
	at int
}

// Lead starts a process that plays a role, before its first point.
func Lead(tb testing.TB, role string, args ...string) *Walk {
	tb.Helper()
	return &Walk{tb: tb, role: role, Process: start(tb, role, each, args)}
}

// Next continues to the next point and returns when the process is there. It returns false
// if the process has ended instead.
func (w *Walk) Next() bool {
	tb := w.tb
	tb.Helper()
	if w.at > 0 {
		w.answer(onward)
	}
	for {
		switch line := w.Line(bound); {
		case line == atPrefix:
			w.at++
			return true
		case strings.HasPrefix(line, donePrefix):
			w.ended()
			return false
		}
	}
}

// End lets the process run to its end and waits for that. If the process fails by itself,
// End fails the test.
func (w *Walk) End() {
	w.tb.Helper()
	w.answer(home)
	w.ended()
}

func (w *Walk) ended() {
	w.tb.Helper()
	if state := w.Wait(bound); !state.Success() {
		w.tb.Fatalf("role %s, led to point %d: %v\n%s", w.role, w.at, state, w.Stderr())
	}
}

func (w *Walk) answer(line string) {
	w.tb.Helper()
	if _, err := fmt.Fprintln(w.Stdin(), line); err != nil {
		w.tb.Fatalf("role %s, led to point %d: %v\n%s", w.role, w.at, err, w.Stderr())
	}
}

// led receives the orders of a Walk in its process.
type led struct {
	mu     sync.Mutex
	orders *bufio.Reader
	free   bool // stop at no further point
}

func newLed(orders io.Reader) *led { return &led{orders: bufio.NewReader(orders)} }

// stop waits for the order to continue.
func (l *led) stop() {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.free {
		return
	}
	fmt.Println(atPrefix)
	line, err := l.orders.ReadString('\n')
	l.free = err != nil || strings.TrimSpace(line) == home
}

// Sleeper is a [Scene] of a process that is stopped while another one runs.
type Sleeper struct {
	Scene
	// Left returns the state that must not change when the process wakes up. If it
	// is empty, the process may continue, because the other one has found nothing.
	Left func(testing.TB) string
}

// EndIdle makes PostgreSQL end sessions of this database that are idle in a transaction for
// more than a second, as those of a stopped process. Without it the locks of such a process
// last until it wakes up.
const EndIdle = `do $$ begin
	execute format('alter database %I set idle_in_transaction_session_timeout = ''1s''', current_database());
end $$`

// Asleep stops a role by SIGSTOP at each of its points, runs heir to its end in another
// process, and wakes the first. The scene must be correct, and the heir's state unchanged.
// Unless [Full] is true, it uses sample points, spread over all.
func Asleep(t *testing.T, role, heir string, sample int, scene func(testing.TB) Sleeper) {
	t.Helper()
	all := whole(t, role, func(tb testing.TB) Scene { return scene(tb).Scene })
	if Full() {
		sample = all
	}
	for _, point := range spread(diceOf(t), sample, all) {
		t.Run(fmt.Sprintf("asleep at %d of %d", point, all), func(t *testing.T) {
			t.Parallel()
			sleep(t, role, heir, point, scene(t))
		})
	}
}

func sleep(t *testing.T, role, heir string, point int, s Sleeper) {
	t.Helper()
	w := Lead(t, role, s.Args...)
	for w.at < point {
		if !w.Next() {
			shorter(t, s.Scene, point)
			return
		}
	}
	w.Pause()
	Run(t, heir, 0, s.Args...)
	left := s.Left(t)
	w.Resume()
	w.End()
	s.Want(t)
	if now := s.Left(t); left != "" && now != left {
		t.Errorf("it was left as\n%s\nand when the process had woken it was\n%s", left, now)
	}
}
