package mysql

import "sync"

// collected is what a statement found, which may go on when nobody waits for it
// any more.
type collected[T any] struct {
	mu    sync.Mutex
	found []T
	taken bool
}

func (c *collected[T]) add(v T) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.taken {
		c.found = append(c.found, v)
	}
}

// take ends the collection.
func (c *collected[T]) take() []T {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.taken = true
	return c.found
}
