package observe

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
)

func TestLogLocks(t *testing.T) {
	var out bytes.Buffer
	limits.Clear()
	h := LogLocks(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})))
	boom := errors.New("boom")
	for _, c := range []struct {
		tell func()
		want string
	}{
		{func() { h.Waiting(LockWaiting{Name: "n", Owner: "o", Ahead: 2, Holder: "x"}) }, `DEBUG msg="waiting for lock" name=n owner=o ahead=2 holder=x`},
		{func() { h.Acquired(LockAcquired{Name: "n", Owner: "o", Token: 4096, Wait: time.Second}) }, `DEBUG msg="lock acquired" name=n owner=o token=4096 wait=1s`},
		{func() { h.Acquired(LockAcquired{Name: "n", Wait: time.Second, Err: boom}) }, `DEBUG msg="lock not acquired" name=n owner="" token=0 wait=1s error=boom`},
		{func() { h.HandedOver(LockHandedOver{Name: "n", Owner: "o", Token: 4097}) }, `DEBUG msg="lock handed over in process" name=n owner=o token=4097`},
		{func() { h.Renewed(LockRenewed{Name: "n", Owner: "o", Took: time.Second, Err: boom}) }, `WARN msg="lock renewal failed" name=n owner=o took=1s error=boom`},
		{func() { h.Renewed(LockRenewed{Name: "n", Owner: "o"}) }, ""},
		{func() {
			h.Ended(LockEnded{Name: "n", Owner: "o", Token: 4096, Held: time.Second, Cause: interlock.ErrReleased})
		}, `DEBUG msg="lock released" name=n owner=o token=4096 held=1s cause="claim released"`},
		{func() {
			h.Ended(LockEnded{Name: "n", Owner: "o", Token: 4096, Held: time.Second, Cause: interlock.ErrLost})
		}, `WARN msg="lock lost" name=n owner=o token=4096 held=1s cause=`},
		{func() {
			h.HeldLong(LockHeldLong{Name: "n", Owner: "o", Token: 4096, Held: 3 * time.Second, Max: 4 * time.Second})
		}, `WARN msg="lock held for long" name=n owner=o token=4096 held=3s max=4s`},
		{func() { h.ReleaseFailed(LockReleaseFailed{Name: "n", Owner: "o", Err: boom}) }, `WARN msg="lock release not confirmed, it is left to expire" name=n owner=o error=boom`},
	} {
		out.Reset()
		c.tell()
		if got := out.String(); !strings.Contains(got, c.want) || (c.want == "") != (got == "") {
			t.Errorf("got  %swant %s", got, c.want)
		}
	}
}

// TestDisabledLevelsCostNothing logs the events of each lock at a level that few loggers write.
func TestDisabledLevelsCostNothing(t *testing.T) {
	h := LogLocks(slog.New(slog.NewTextHandler(io.Discard, nil)))
	if n := testing.AllocsPerRun(100, func() { h.Acquired(LockAcquired{Name: "n", Owner: "o"}) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
