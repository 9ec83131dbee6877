package semaphore

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/join"
)

// sizeLock returns the name of the lock for changes of the number of permits; its token
// orders the changes. Its name has the prefix of the slots, so contenders that watch the
// slots see the change.
func (n names) sizeLock() string { return n.slots + "size" }

// Resize sets the number of permits of name, 1 to [MaxPermits], for all processes. A waiter
// sees a larger number at once. With a smaller number, permits beyond it stay held until they
// are released; until then as many holders as before can act. It needs [Options].Values, and
// waits for concurrent changes as [lock.Fenced.Acquire] does.
func (s *Semaphore) Resize(ctx context.Context, name string, permits int) error {
	n, err := s.names(name)
	switch {
	case s.values == nil:
		err = s.bug(name, "the semaphore has no Values to keep its size in")
	case permits < 1 || permits > MaxPermits:
		err = s.bug(name, "%d permits are asked for, 1 to %d are possible", permits, MaxPermits)
	}
	if err != nil {
		return s.fail(ctx, name, err)
	}
	c, err := s.locks.Acquire(ctx, n.sizeLock())
	if err != nil {
		return s.fail(ctx, name, err)
	}
	inside, stop := join.Context(ctx, c.Context())
	defer stop()
	err = s.values.Put(inside, n.sizeLock(), driver.Value{
		Token: c.Token(), Source: c.Owner(), Data: strconv.AppendInt(nil, int64(permits), 10)})
	return errors.Join(err, c.Release(ctx)) // waiters look again when it is free
}

func (s *Semaphore) bug(name, format string, args ...any) error {
	return s.driver.New("resize", name, interlock.Bug, fmt.Errorf(format, args...))
}

// Size returns the number of permits of name.
func (s *Semaphore) Size(ctx context.Context, name string) (int, error) {
	n, err := s.names(name)
	if err != nil {
		return 0, s.fail(ctx, name, err)
	}
	return s.sizeOf(ctx, n)
}

// room returns the number of slots, or an error if fewer than wanted exist.
func (s *Semaphore) room(ctx context.Context, n names, wanted int) (size int, err error) {
	size, err = s.sizeOf(ctx, n)
	if err == nil && wanted > size {
		err = s.driver.New("count permits of", n.name, interlock.Definite, fmt.Errorf("%w: %d permits at once; the name has %d", ErrSize, wanted, size))
	}
	return size, err
}

func (s *Semaphore) sizeOf(ctx context.Context, n names) (int, error) {
	if s.values == nil {
		return s.size, nil
	}
	v, err := s.values.Get(ctx, n.sizeLock())
	if err != nil || v.Token == 0 {
		return s.size, err
	}
	size, err := driver.ParseInt(string(v.Data))
	if err != nil || size < 1 || size > MaxPermits {
		return 0, s.driver.New("read size of", n.name, interlock.Definite, fmt.Errorf("%.40q is not a number of permits", v.Data))
	}
	return int(size), nil
}
