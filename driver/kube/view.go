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
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
)

// view is what this process knows of the Leases of its namespace: from the watch,
// and from every answer. The driver's mutex guards it.
type view struct {
	up       bool // the watch is open, or will report what is missing here
	sights   map[string]*sight
	waiting  map[string]map[chan struct{}]bool // channels to signal, by object
	watchers map[*driver.Mailbox]bool
	reopen   context.CancelFunc // of the watch
}

// at returns the sight of an object, to be changed.
func (v *view) at(object string) *sight {
	s := v.sights[object]
	if s == nil {
		s = &sight{}
		v.sights[object] = s
	}
	return s
}

// now returns a copy of the sight, and stores none.
func (v *view) now(object string) sight {
	if s := v.sights[object]; s != nil {
		return *s
	}
	return sight{}
}

func (v *view) wake(object string) {
	for w := range v.waiting[object] {
		nudge(w)
	}
}

// look returns a copy of the sight of an object.
func (d *Driver) look(object string) sight {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.view.now(object)
}

// learn takes an object that was read or written; news means that the watch has not
// reported it yet.
func (d *Driver) learn(name string, o object) (news bool) {
	return d.change(name, func(s *sight, now boottime.Instant) bool { return s.observe(o, now) })
}

// change changes a sight and wakes its waiters and watchers.
func (d *Driver) change(object string, how func(s *sight, now boottime.Instant) bool) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.view.at(object)
	former := s.holder()
	if !how(s, boottime.Now()) {
		return false
	}
	d.observeBase(s.object)
	if s.holder() != former {
		if name, ours := d.layout.name(object); ours {
			for box := range d.view.watchers {
				box.Add(name)
			}
		}
	}
	d.doubt(object, s)
	d.view.wake(object)
	return true
}

// drop forgets an object that does not exist and has no waiters.
func (d *Driver) drop(object string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if s := d.view.sights[object]; s != nil && !s.exists() && len(d.view.waiting[object]) == 0 {
		delete(d.view.sights, object)
	}
}

// doubt makes holders renew at once if another owner seems to have their Lease.
// Only the answer to that can end a claim.
func (d *Driver) doubt(object string, s *sight) {
	for _, c := range d.contenders {
		if c.object == object && c.stage == holding && s.holder() != c.owner && s.rev > c.now.rev {
			c.due = 0
			nudge(d.tendNow)
		}
	}
}

// adopt replaces all sights by a list.
func (d *Driver) adopt(all snapshot) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := boottime.Now()
	listed := map[string]*sight{}
	for _, o := range all.objects {
		if _, ours := d.layout.name(o.lease.Name); !ours {
			continue
		}
		s := d.view.at(o.lease.Name)
		s.replace(o, now)
		listed[o.lease.Name] = s
		d.observeBase(o)
	}
	d.view.sights = listed
	for _, c := range d.contenders {
		if s := d.view.now(c.object); c.stage == holding && s.holder() != c.owner {
			c.due = 0
		}
	}
	nudge(d.tendNow)
	for object := range d.view.waiting {
		d.view.wake(object)
	}
	d.view.up = true
	for box := range d.view.watchers {
		box.Miss()
	}
}

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

// Watch implements driver.Watcher, over the driver's one watch. A hint means that
// any client changed the holder of a Lease; renewals give none.
func (d *Driver) Watch(ctx context.Context, prefix string, changed func(name string)) error {
	box := driver.NewMailbox(prefix, driver.MostNames)
	if err := d.subscribe(box, prefix); err != nil {
		return err
	}
	defer d.unsubscribe(box)
	for {
		if ctx.Err() != nil {
			return problem("watch", prefix, interlock.Definite, context.Cause(ctx))
		}
		select {
		case <-ctx.Done():
		case <-d.ctx.Done():
			return errClosed("watch", prefix)
		case <-box.Woken():
			names, missed := box.Take()
			if missed {
				names = []string{""}
			}
			for _, name := range names {
				changed(name)
			}
		}
	}
}

// subscribe registers box. If the watch is open, nothing is missed from here on;
// otherwise the next list reports the changes.
func (d *Driver) subscribe(box *driver.Mailbox, prefix string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return errClosed("watch", prefix)
	}
	d.view.watchers[box] = true
	if d.view.up {
		box.Miss()
	}
	return nil
}

func (d *Driver) unsubscribe(box *driver.Mailbox) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.view.watchers, box)
}

func nudge(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
