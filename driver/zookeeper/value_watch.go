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

// Watch implements driver.Values by one watch of ZooKeeper on the value's node.
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
		events, err := w.look(ctx)
		if err == nil {
			err = w.wait(ctx, events)
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
	return prelude(err)
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

// look reads the value and watches for the next change.
func (w *valueWatch) look(ctx context.Context) (<-chan zk.Event, error) {
	f, err := w.ask(ctx, opWatch, w.name, func() (*found, error) {
		data, stat, ch, err := w.conn.GetW(w.path(w.name))
		if errors.Is(err, zk.ErrNoNode) {
			return w.awaitFirst()
		}
		return &found{data: data, stat: stat, events: ch}, err
	})
	if err != nil {
		return nil, err
	}
	return f.events, w.report(f)
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
func (w *valueWatch) wait(ctx context.Context, events <-chan zk.Event) error {
	again := time.NewTicker(reread)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case ev := <-events:
			if ev.Err != nil {
				return failed(opWatch, w.name, ev.Err)
			}
			return nil
		case <-again.C:
			f, err := w.ask(ctx, opWatch, w.name, func() (*found, error) { return w.present(nil) })
			if err == nil {
				err = w.report(f)
			}
			if err != nil {
				return err
			}
		}
	}
}
