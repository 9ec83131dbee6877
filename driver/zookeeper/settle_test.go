package zookeeper

import (
	"bufio"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/virtual"
)

// TestAnswersWaitForWatches: over a connection that replaces another, the client receives no answer
// before it has set its watches again, or has had the time for that.
func TestAnswersWaitForWatches(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		for _, sets := range []bool{true, false} {
			ours, theirs := net.Pipe()
			w := &wire{greeted: greeted{Conn: ours}, link: &link{}, buffer: bufio.NewReader(ours), watches: make(chan struct{})}
			greeting := append([]byte{0, 0, 0, 36}, make([]byte, 36)...)
			go func() {
				_, _ = theirs.Write(append(greeting, 0, 0, 0, 0)) // until it is closed, as the next
				_, _ = io.Copy(io.Discard, theirs)
			}()
			_, err := io.ReadFull(w, make([]byte, len(greeting)))
			testbed.OK(t, err)
			began, answered := time.Now(), make(chan error, 1)
			go func() {
				_, err := io.ReadFull(w, make([]byte, 4))
				answered <- err
			}()
			synctest.Wait()
			if len(answered) > 0 {
				t.Fatal("an answer before the client has set its watches")
			}
			if sets {
				_, err := w.Write([]byte{0, 0, 0, 8, 0, 0, 0, 1, 0, 0, 0, 101})
				testbed.OK(t, err)
			}
			testbed.OK(t, <-answered)
			if took := time.Since(began); sets != (took == 0) || took > settling {
				t.Fatalf("held back for %v, after watches were set: %v", took, sets)
			}
			testbed.OK(t, w.Close())
			testbed.OK(t, theirs.Close())
		}
	})
}
