package zookeeper

import (
	"context"
	"errors"
	"strings"

	"github.com/go-zookeeper/zk"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

var _ driver.Watcher = (*Driver)(nil)

const opWatch = "watch"

// Watch implements driver.Watcher, by one watch of ZooKeeper on the root and one
// on each lock's node with the prefix, while that node exists. All calls share them. After each change
// the node is read once, which sets the watch again. The end of the session ends
// Watch with a Retryable error. After a broken connection Watch reports that
// changes may have been missed, and continues.
func (d *Driver) Watch(ctx context.Context, prefix string, changed func(name string)) error {
	if ctx.Err() != nil {
		return notSent(ctx, opWatch, prefix)
	}
	s, err := d.current(ctx)
	if err != nil {
		return harmless(err)
	}
	sub := &subscription{s: s, prefix: prefix, changed: changed, armed: map[string]bool{}, paths: driver.NewMailbox("", 0)}
	if err := d.subscribe(s, sub); err != nil {
		return err
	}
	defer d.unsubscribe(s, sub)
	if err := sub.arm(ctx, d.layout.root, false); err != nil {
		return harmless(err)
	}
	changed("")
	for {
		select {
		case <-ctx.Done():
			return notSent(ctx, opWatch, prefix)
		case <-sub.paths.Woken():
		}
		if err := sub.report(ctx); err != nil {
			return harmless(err)
		}
	}
}

// report reads the nodes that have changed, and reports their names.
func (sub *subscription) report(ctx context.Context) error {
	d := sub.s.d
	paths, missed, err := d.news(sub.s, sub)
	if err != nil {
		return err
	}
	for _, path := range paths {
		if err := sub.look(ctx, path); err != nil {
			return err
		}
	}
	if !missed {
		return nil
	}
	if err := sub.arm(ctx, d.layout.root, false); err != nil {
		return err
	}
	sub.changed("")
	return nil
}

func (d *Driver) subscribe(s *session, sub *subscription) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.closed:
		return fail.Closed(opWatch, sub.prefix)
	case s.ended:
		return interrupted(sub.prefix)
	}
	s.nodes.hints[sub] = true
	return nil
}

func (d *Driver) unsubscribe(s *session, sub *subscription) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(s.nodes.hints, sub)
}

// news returns the paths that have changed, or the error that ends the watch. missed reports
// an interruption.
func (d *Driver) news(s *session, sub *subscription) (paths []string, missed bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.closed:
		return nil, false, fail.Closed(opWatch, sub.prefix)
	case s.ended:
		return nil, false, interrupted(sub.prefix)
	}
	paths, missed = sub.paths.Take()
	return paths, missed, nil
}

func interrupted(prefix string) error {
	return fail.New(opWatch, prefix, interlock.Retryable, interlock.ErrSessionEnded)
}

// subscription is one call of Watch.
type subscription struct {
	s       *session
	prefix  string
	changed func(name string)
	armed   map[string]bool // paths that are watched
	// paths are those of the events; some are missed when a connection is replaced.
	// Each watch fires once, so that none may be dropped.
	paths *driver.Mailbox
}

// look reads a node that has changed, and reports its name. Events of contenders' own nodes
// arrive too, and are ignored.
func (sub *subscription) look(ctx context.Context, path string) error {
	if !sub.armed[path] {
		return nil
	}
	if err := sub.arm(ctx, path, true); err != nil {
		return err
	}
	if name, ok := sub.s.d.layout.name(path); ok && strings.HasPrefix(name, sub.prefix) {
		sub.changed(name)
	}
	return nil
}

// arm watches a node's children, and those of the locks below that are not
// watched yet. With notify it reports the names of the new ones, after their watch
// is set.
func (sub *subscription) arm(ctx context.Context, path string, notify bool) error {
	l := sub.s.d.layout
	list, err := sub.list(ctx, path)
	if errors.Is(err, zk.ErrNoNode) && path != l.root {
		delete(sub.armed, path)
		return nil
	}
	if err != nil {
		return err
	}
	sub.armed[path] = true
	for _, child := range list {
		name, ok := l.lockAt(path, child)
		below := path + "/" + child
		wanted := strings.HasPrefix(name, sub.prefix)
		if !ok || path != l.root && !l.raw || !wanted && !l.raw || sub.armed[below] {
			continue
		}
		if err := sub.arm(ctx, below, notify); err != nil {
			return err
		}
		if notify && wanted {
			sub.changed(name)
		}
	}
	return nil
}

// list lists the children of a node, and watches them unless another call does: a second watch would
// stay in the client until a change.
func (sub *subscription) list(ctx context.Context, path string) ([]string, error) {
	s, own := sub.s, new(bool)
	s.d.mu.Lock()
	first := s.nodes.lists[path]
	if first == nil {
		s.nodes.lists[path], first = own, own
	}
	watched := *first
	s.d.mu.Unlock()
	list, err := ask(ctx, s, opWatch, sub.prefix, func(c *zk.Conn) (list []string, err error) {
		if watched {
			list, _, err = c.Children(path)
		} else {
			list, _, _, err = c.ChildrenW(path)
		}
		return list, err
	})
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	if *own = err == nil; !*own && s.nodes.lists[path] == own {
		delete(s.nodes.lists, path)
	}
	return list, err
}
