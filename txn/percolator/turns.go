package percolator

import (
	"context"
	"sync"
)

// turns has the keys that commits of this process use.
type turns struct {
	mu   sync.Mutex
	keys map[string]*turn
}

// A turn is one key, while it is used or awaited.
type turn struct {
	taken chan struct{} // capacity 1, full while used: others queue in order
	users int           // of both kinds
}

// lock waits until no other caller uses one of keys, which are sorted: then callers do not
// deadlock. If ctx ends before, it returns the cause, and uses none.
func (t *turns) lock(ctx context.Context, keys []string) (unlock func(), waited bool, err error) {
	used := 0
	unlock = sync.OnceFunc(func() {
		for _, key := range keys[:used] {
			t.leave(key, true)
		}
	})
	for _, key := range keys {
		taken := t.join(key)
		select {
		case taken <- struct{}{}:
		default:
			waited = true
			select {
			case taken <- struct{}{}:
			case <-ctx.Done():
				t.leave(key, false)
				unlock()
				return nil, true, context.Cause(ctx)
			}
		}
		used++
	}
	return unlock, waited, nil
}

func (t *turns) join(key string) (taken chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	k := t.keys[key]
	if k == nil {
		k = &turn{taken: make(chan struct{}, 1)}
		t.keys[key] = k
	}
	k.users++
	return k.taken
}

func (t *turns) leave(key string, used bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	k := t.keys[key]
	if used {
		<-k.taken
	}
	if k.users--; k.users == 0 {
		delete(t.keys, key)
	}
}
