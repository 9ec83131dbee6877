package doctor

import (
	"context"
	"errors"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/zookeeper"
)

// silence is a logger that drops everything: errors are returned.
type silence struct{}

func (silence) Printf(string, ...any) {}

// counter reads the base of tokens, in a session that ends with the call. It takes
// three seconds at most. Without a base the error is zk.ErrNoNode.
func (p *zookeeperProbe) counter(ctx context.Context) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	conn, events, err := zk.Connect(p.hosts, 10*time.Second, zk.WithLogger(silence{}), zk.WithLogInfo(false),
		zk.WithDialer(zookeeper.Dialer(2*time.Second, p.dial)), zk.WithHostProvider(zookeeper.Hosts()))
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, conn.Close)() // a request without a quorum has no bound of its own
	if err := greeted(ctx, events); err != nil {
		return 0, err
	}
	if p.auth != "" {
		if err := conn.AddAuth("digest", []byte(p.auth)); err != nil {
			return 0, err
		}
	}
	data, stat, err := conn.Get(p.root + "/" + driver.BaseName)
	if err != nil {
		return 0, err
	}
	counter, err := zookeeper.LastCounter(data, stat)
	if err != nil {
		return 0, &baseError{err}
	}
	return counter, nil
}

// A baseError is a node of the base with which the driver does not open.
type baseError struct{ error }

// greeted waits for a session.
func greeted(ctx context.Context, events <-chan zk.Event) error {
	for {
		select {
		case <-ctx.Done():
			return errors.New("no session was granted in time")
		case e, open := <-events:
			if !open || e.State == zk.StateAuthFailed {
				return errors.New("no session was granted")
			}
			if e.State == zk.StateHasSession {
				return nil
			}
		}
	}
}
