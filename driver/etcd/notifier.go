package etcd

import (
	"context"
	"errors"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// notifierInterval is the minimum time between two puts of a Notifier.
const notifierInterval = time.Millisecond

// Notifier notifies other processes by a put of one key, and this process at once. Notifications
// during a put are sent in the next one. It implements driver.Notifier.
type Notifier struct {
	notifier *driver.SharedNotifier
	client   *clientv3.Client
	key      string
}

var _ driver.Notifier = (*Notifier)(nil)

// NewNotifier returns a notifier for all processes that use the same prefix, by the key prefix +
// "interlock.notifier". It sends nothing. The client must outlive the notifier. Close it.
func NewNotifier(client *clientv3.Client, prefix string) *Notifier {
	b := &Notifier{client: client, key: prefix + reserved + "notifier"}
	b.notifier = driver.NewSharedNotifier(driver.NotifierTransport{Interval: notifierInterval, Send: b.send, Subscribe: b.watchKey})
	return b
}

// Notify calls all listeners; see driver.Notifier. After Close it notifies this process only.
func (b *Notifier) Notify(names ...string) { b.notifier.Notify(names...) }

// Listen calls each for every notification, and if some may have been missed; see driver.Notifier.
func (b *Notifier) Listen(each func(name string)) (stop func()) { return b.notifier.Listen(each) }

// Close ends its watch, and waits for that until ctx ends.
func (b *Notifier) Close(ctx context.Context) error {
	if err := b.notifier.Close(ctx); err != nil {
		return problem("close notifier", b.key, interlock.Retryable, err)
	}
	return nil
}

func (b *Notifier) send(ctx context.Context, text string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, requestTimeout, errSlow)
	defer cancel()
	_, err := b.client.Put(ctx, b.key, text)
	return err
}

// watchKey watches the key. A watch that breaks, or is silent for long, is opened again.
func (b *Notifier) watchKey(life context.Context, deliver func(text string)) {
	for life.Err() == nil {
		if b.watch(life, deliver) == nil {
			continue
		}
		select {
		case <-life.Done():
		case <-time.After(time.Second):
		}
	}
}

func (b *Notifier) watch(life context.Context, deliver func(text string)) error {
	ctx, cancel := context.WithTimeout(clientv3.WithRequireLeader(life), lookAgain)
	defer cancel()
	err := errors.New("the watch did not begin")
	for reply := range b.client.Watch(ctx, b.key, clientv3.WithCreatedNotify()) {
		if err = reply.Err(); err != nil {
			return err
		}
		if reply.Created {
			deliver("")
		}
		for _, e := range reply.Events {
			deliver(string(e.Kv.Value))
		}
	}
	return err
}
