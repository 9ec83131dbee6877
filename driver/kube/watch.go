package kube

import (
	"context"
	"errors"
	"fmt"
	"time"

	coordination "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver/boottime"
)

// follow keeps one watch over the namespace. up receives nil with the first list, or its
// error.
func (d *Driver) follow(up chan<- error) {
	for d.ctx.Err() == nil {
		err := d.followOnce(up)
		if err != nil {
			report(up, err)
		}
		pause := time.NewTimer(d.pace.retry)
		select {
		case <-d.ctx.Done():
		case <-pause.C:
		}
		pause.Stop()
	}
}

// report sends err if a caller still waits for it.
func report(up chan<- error, err error) {
	select {
	case up <- err:
	default:
	}
}

// followOnce lists all Leases and follows them from there until the watch ends for
// any reason. Then everything is listed again, so that the length of the server's
// history does not matter.
func (d *Driver) followOnce(up chan<- error) error {
	ctx, cancel := context.WithCancel(d.ctx)
	defer cancel()
	d.mu.Lock()
	d.view.up, d.view.reopen = false, cancel
	d.mu.Unlock()
	all, err := d.list(ctx)
	if err != nil {
		return err
	}
	d.adopt(all)
	report(up, nil)
	events, err := d.client.watch(ctx, all.version)
	if err != nil {
		return unread(ctx, "watch", "", err)
	}
	defer events.Stop()
	for e := range events.ResultChan() {
		if err := d.event(e); err != nil {
			return err
		}
	}
	return nil
}

// list lists all Leases, and raises the base at the server's present revision.
func (d *Driver) list(ctx context.Context) (snapshot, error) {
	rctx, cancel := d.bounded(ctx)
	defer cancel()
	wall := d.options.Now() // before the request: see floor
	all, err := d.client.list(rctx)
	if err != nil {
		if apierrors.IsForbidden(err) {
			err = fmt.Errorf("the driver needs the rights to get, list, watch, create and update Leases: %w", err)
		}
		return snapshot{}, unread(rctx, "list", "", err)
	}
	_ = d.raiseTo(wall, all.rev) // Open has checked the clock, and the next new Lease will
	return all, nil
}

func (d *Driver) event(e watch.Event) error {
	if e.Type == watch.Error {
		return problem("watch", "", interlock.Retryable, apierrors.FromObject(e.Object))
	}
	l, ok := e.Object.(*coordination.Lease)
	if !ok {
		return problem("watch", "", interlock.Retryable, errors.New("an event without a Lease"))
	}
	if _, ours := d.layout.name(l.Name); !ours || e.Type == watch.Bookmark {
		return nil
	}
	o, err := newObject(l)
	if err != nil {
		return problem("watch", "", interlock.Retryable, err)
	}
	d.change(l.Name, func(s *sight, now boottime.Instant) bool {
		if e.Type == watch.Deleted {
			return s.deleted(o.rev, now)
		}
		return s.observe(o, now)
	})
	d.drop(l.Name)
	return nil
}

// read reads one Lease. It returns the answer, even if the view differs.
func (d *Driver) read(ctx context.Context, op, name, at string) (o object, news bool, err error) {
	before := d.look(at).rev
	rctx, cancel := d.bounded(ctx)
	defer cancel()
	o, err = d.client.get(rctx, at)
	switch {
	case err == nil:
		return o, d.learn(at, o), nil
	case apierrors.IsNotFound(err):
		news = d.change(at, func(s *sight, now boottime.Instant) bool { return s.absent(before, now) })
		return object{}, news, nil
	}
	return object{}, false, unread(rctx, op, name, err)
}
