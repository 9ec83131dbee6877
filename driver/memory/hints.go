package memory

import (
	"context"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// announce records the changes of the table's last step for every watch. The caller
// holds the mutex.
func (s *Space) announce() {
	for name := range s.table.touched {
		for box := range s.watches {
			box.Add(name)
		}
	}
	clear(s.table.touched)
}

// watch starts a watch: from here on nothing is missed.
func (s *Space) watch(prefix string) *driver.Mailbox {
	s.mu.Lock()
	defer s.unlock()
	box := driver.NewMailbox(prefix, driver.MostNames)
	box.Miss()
	s.watches[box] = true
	return box
}

func (s *Space) unwatch(box *driver.Mailbox) {
	s.mu.Lock()
	defer s.unlock()
	delete(s.watches, box)
}

// Watch reports every change, expiry included; see driver.Watcher. Nothing
// interrupts it, so the empty name comes first, and again only if the caller leaves
// more than a thousand names pending.
func (d *Driver) Watch(ctx context.Context, prefix string, changed func(name string)) error {
	box := d.space.watch(prefix)
	defer d.space.unwatch(box)
	for {
		switch {
		case d.isClosed():
			return interlock.ErrClosed
		case ctx.Err() != nil:
			return fail.Unsent(ctx, "watch", prefix)
		}
		select {
		case <-box.Woken():
		case <-ctx.Done():
			continue
		case <-d.done:
			continue
		}
		names, missed := box.Take()
		if missed {
			names = append(names, "")
		}
		for _, name := range names {
			if ctx.Err() != nil {
				break
			}
			changed(name)
		}
	}
}

var _ driver.Watcher = (*Driver)(nil)
