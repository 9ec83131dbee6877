package etcd

import (
	"context"
	"errors"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// bellInterval is the least time between two puts of a Bell.
const bellInterval = time.Millisecond

// Bell rings in other processes by a put of one key, and in this one at once. Rings that
// come while a put is under way travel in the next one. It implements driver.Bell.
type Bell struct {
	bell   *driver.SharedBell
	client *clientv3.Client
	key    string
}

var _ driver.Bell = (*Bell)(nil)

// NewBell makes a bell of all that use the same prefix, in the key prefix +
// "interlock.bell". It sends nothing, and the client must outlive its use. Close it.
func NewBell(client *clientv3.Client, prefix string) *Bell {
	b := &Bell{client: client, key: prefix + reserved + "bell"}
	b.bell = driver.NewSharedBell(driver.BellTransport{Interval: bellInterval, Send: b.send, Hear: b.watchKey})
	return b
}

// Ring wakes all who listen; see driver.Bell. After Close it rings in this process only.
func (b *Bell) Ring(names ...string) { b.bell.Ring(names...) }

// Listen calls each after rings, and when some may have been missed; see driver.Bell.
func (b *Bell) Listen(each func(name string)) (stop func()) { return b.bell.Listen(each) }

// Close ends its watch, and waits for that until ctx ends.
func (b *Bell) Close(ctx context.Context) error {
	if err := b.bell.Close(ctx); err != nil {
		return &interlock.Error{Op: "close bell", Driver: driverName, Name: b.key, Kind: interlock.Retryable, Err: err}
	}
	return nil
}

func (b *Bell) send(ctx context.Context, text string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, requestTimeout, errSlow)
	defer cancel()
	_, err := b.client.Put(ctx, b.key, text)
	return err
}

// watchKey watches the key. A watch that breaks, or is silent for long, is opened again.
func (b *Bell) watchKey(life context.Context, heard func(text string)) {
	for life.Err() == nil {
		if b.watch(life, heard) == nil {
			continue
		}
		select {
		case <-life.Done():
		case <-time.After(time.Second):
		}
	}
}

func (b *Bell) watch(life context.Context, heard func(text string)) error {
	ctx, cancel := context.WithTimeout(clientv3.WithRequireLeader(life), lookAgain)
	defer cancel()
	err := errors.New("the watch did not begin")
	for reply := range b.client.Watch(ctx, b.key, clientv3.WithCreatedNotify()) {
		if err = reply.Err(); err != nil {
			return err
		}
		if reply.Created {
			heard("")
		}
		for _, e := range reply.Events {
			heard(string(e.Kv.Value))
		}
	}
	return err
}
