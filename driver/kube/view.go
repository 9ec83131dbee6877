package kube

import (
	"context"

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

func newView() view {
	return view{sights: map[string]*sight{}, waiting: map[string]map[chan struct{}]bool{}, watchers: map[*driver.Mailbox]bool{}}
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
		d.view.notify(d.layout, object)
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
	d.view.notifyAll()
}

func nudge(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
