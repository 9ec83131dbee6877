package zookeeper

import (
	"context"
	"errors"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// reread is the interval at which a watched value is read without an event.
const reread = 5 * time.Second

// Watch implements driver.Values by one watch of ZooKeeper on the value's node, which later calls
// for the name share.
// A broken connection or an ended session may end it with a Retryable error.
func (v *Values) Watch(ctx context.Context, name string, each func(driver.Value)) error {
	if err := v.check(ctx, opWatch, name); err != nil {
		return err
	}
	if err := v.sync(ctx, name); err != nil {
		return ended(ctx, name, err)
	}
	w := valueWatch{Values: v, name: name, each: each}
	for {
		set, err := w.look(ctx)
		if err == nil {
			err = w.wait(ctx, set)
		}
		if err != nil {
			return ended(ctx, name, err)
		}
	}
}

// ended returns the error of a watch: the cause of ctx if that has ended, otherwise err.
func ended(ctx context.Context, name string, err error) error {
	if ctx.Err() != nil {
		return notSent(ctx, opWatch, name)
	}
	return harmless(err)
}

// valueWatch is one call of Watch.
type valueWatch struct {
	*Values
	name     string
	each     func(driver.Value)
	reported bool
	last     interlock.Token
	at       int64 // the transaction that wrote the last
}

// nodeWatch is a watch of the client that has not fired. The client cannot remove it, so that later
// calls use it: with one for each call there would be ever more until a change.
type nodeWatch struct {
	events <-chan zk.Event
	fired  chan struct{} // closed when a call has received the event
	err    error         // of the event
}

// look reads the value, and returns a watch for the next change that was set before.
func (w *valueWatch) look(ctx context.Context) (*nodeWatch, error) {
	path := w.path(w.name)
	w.mu.Lock()
	set := w.watches[path]
	w.mu.Unlock()
	f, err := w.ask(ctx, opWatch, w.name, func() (*found, error) {
		if set != nil {
			return w.present(nil)
		}
		data, stat, ch, err := w.conn.GetW(path)
		if errors.Is(err, zk.ErrNoNode) {
			return w.awaitFirst()
		}
		return &found{data: data, stat: stat, events: ch}, err
	})
	if err != nil {
		return nil, err
	}
	if set == nil {
		set = &nodeWatch{events: f.events, fired: make(chan struct{})}
		w.mu.Lock()
		w.watches[path] = set
		w.mu.Unlock()
	}
	return set, w.report(f)
}

// drop forgets a watch, so that the next look sets another.
func (w *valueWatch) drop(set *nodeWatch) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if path := w.path(w.name); w.watches[path] == set {
		delete(w.watches, path)
	}
}

// awaitFirst watches for the creation of a node. If it exists already, it reads it and watches
// for its next change.
func (w *valueWatch) awaitFirst() (*found, error) {
	exists, _, ch, err := w.conn.ExistsW(w.path(w.name))
	if err == nil && exists {
		return w.present(ch)
	}
	return &found{events: ch}, err
}

// present reads a node that appeared just before it was watched.
func (w *valueWatch) present(ch <-chan zk.Event) (*found, error) {
	data, stat, err := w.conn.Get(w.path(w.name))
	if errors.Is(err, zk.ErrNoNode) {
		return &found{events: ch}, nil // deleted again; the watch fires
	}
	return &found{data: data, stat: stat, events: ch}, err
}

// report reports a value that is newer than the last. A missing value it reports only at the
// beginning.
func (w *valueWatch) report(f *found) error {
	if f.stat == nil {
		if !w.reported {
			w.reported = true
			w.each(driver.Value{})
		}
		return nil
	}
	value, err := readValue(opWatch, w.name, f)
	if err != nil {
		return err
	}
	if value.Token > w.last || value.Token == w.last && f.stat.Mzxid > w.at {
		w.reported, w.last, w.at = true, value.Token, f.stat.Mzxid
		w.each(value)
	}
	return nil
}

// wait returns after an event. At intervals it also reads the value, in case an event was lost.
func (w *valueWatch) wait(ctx context.Context, set *nodeWatch) error {
	again := time.NewTicker(reread)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-set.fired:
			return set.err
		case ev, first := <-set.events: // closed after the event
			if !first { // another call has received it
				<-set.fired
				return set.err
			}
			w.drop(set)
			if ev.Err != nil {
				set.err = failed(opWatch, w.name, ev.Err)
			}
			close(set.fired)
		case <-again.C:
			at := w.at
			f, err := w.ask(ctx, opWatch, w.name, func() (*found, error) { return w.present(nil) })
			if err == nil {
				err = w.report(f)
			}
			if err != nil {
				return err
			}
			if w.at > at { // its event was lost, or is late
				w.drop(set)
				return nil
			}
		}
	}
}
