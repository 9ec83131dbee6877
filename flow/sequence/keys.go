package sequence

import (
	"container/heap"
	"container/list"
	"context"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
)

// entry is the state of a key. The goroutine that has filled lock uses its machine; Sequencer.mu
// guards the other fields.
type entry struct {
	key     string
	lock    chan struct{} // capacity 1
	machine machine
	users   int           // callers that use it or wait for it
	idle    *list.Element // in Sequencer.idle; nil if not
	due     time.Time     // of the next tick; zero means none
	at      int           // index in the agenda; -1 if not there
	tended  bool          // a tick was started
	bytes   int64         // held
}

// idle are entries that may be evicted, the least recently used first.
type idle struct{ list.List }

// enter locks a key.
func (s *Sequencer[T]) enter(ctx context.Context, op, key string) (*entry, error) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil, failure.Bug(op, key, "%w", interlock.ErrClosed)
	}
	s.work.Add(1)
	k := s.entry(key)
	s.mu.Unlock()
	if ctx.Err() == nil {
		select {
		case k.lock <- struct{}{}:
			return k, nil
		case <-ctx.Done():
		}
	}
	s.forget(k)
	return nil, &interlock.Error{Op: op, Name: key, Kind: interlock.Definite, Err: context.Cause(ctx)}
}

// entry returns the entry of a key, for one more user. The mutex is held.
func (s *Sequencer[T]) entry(key string) *entry {
	k := s.keys[key]
	if k == nil {
		k = &entry{key: key, lock: make(chan struct{}, 1), machine: machine{rules: s.rules}, at: -1}
		s.keys[key] = k
	}
	if k.idle != nil {
		s.idle.Remove(k.idle)
		k.idle = nil
	}
	k.users++
	return k
}

// leave unlocks a key. It aborts an operation that has not ended because the handler panicked.
func (s *Sequencer[T]) leave(k *entry) {
	k.machine.abort(s.now())
	due := k.machine.due()
	bytes := int64(0)
	for _, h := range k.machine.held {
		bytes += weight(h.event)
	}
	s.mu.Lock()
	s.weigh(k, bytes)
	s.schedule(k, due)
	s.mu.Unlock()
	<-k.lock
	s.forget(k)
}

// abandon drops the held events of a key whose claim has ended: they are delivered again under the next one, maybe
// to another process. Settled is not called for them.
func (s *Sequencer[T]) abandon(key string, claim driver.Assignment) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k := s.keys[key]; k == nil || k.bytes == 0 || s.closed {
		return
	}
	s.work.Go(func() {
		ctx, cancel := context.WithTimeout(s.ctx, s.options.Timeout)
		defer cancel()
		k, err := s.enter(ctx, "abandon events", key)
		if err != nil {
			return
		}
		defer s.leave(k)
		s.step(ctx, k, input{kind: abandon, gone: func(e Event) bool {
			x, ok := e.Handle.(*flight)
			return ok && x.message.Claim == claim
		}})
	})
}

// forget removes a user of an entry, and evicts idle entries beyond Options.Cached.
func (s *Sequencer[T]) forget(k *entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.work.Done()
	k.users--
	if k.users > 0 || k.bytes > 0 {
		return
	}
	k.idle = s.idle.PushBack(k)
	for s.idle.Len() > max(s.options.Cached, 0) {
		oldest := s.idle.Remove(s.idle.Front()).(*entry)
		delete(s.keys, oldest.key)
	}
}

// weight returns the bytes that an event counts for.
func weight(e Event) int64 { return int64(len(e.Key) + len(e.Payload)) }

// weigh sets the bytes that a key holds. The mutex is held.
func (s *Sequencer[T]) weigh(k *entry, bytes int64) {
	s.bytes += bytes - k.bytes
	switch {
	case k.bytes == 0 && bytes > 0:
		s.gaps++
	case k.bytes > 0 && bytes == 0:
		s.gaps--
	}
	k.bytes = bytes
}

// reserve reserves room for an event in case it must be held. leave returns unused room.
func (s *Sequencer[T]) reserve(k *entry, e Event) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.bytes+weight(e) > s.options.Bytes:
		return &FullError{Key: e.Key, What: "bytes are held"}
	case k.bytes == 0 && s.gaps >= s.options.Gaps:
		return &FullError{Key: e.Key, What: "keys hold events"}
	}
	s.weigh(k, k.bytes+weight(e))
	return nil
}

// schedule sets when a key is due. The mutex is held.
func (s *Sequencer[T]) schedule(k *entry, due time.Time) {
	if k.at >= 0 {
		heap.Remove(&s.due, k.at)
	}
	if k.due = due; due.IsZero() || k.tended {
		return
	}
	heap.Push(&s.due, k)
	if k.at == 0 {
		select {
		case s.wake <- struct{}{}:
		default:
		}
	}
}

// agenda is a heap of entries by due time.
type agenda []*entry

// Len implements [heap.Interface], as the following methods do.
func (a agenda) Len() int { return len(a) }

// Less compares due times.
func (a agenda) Less(i, j int) bool { return a[i].due.Before(a[j].due) }

// Swap keeps the indexes.
func (a agenda) Swap(i, j int) {
	a[i], a[j] = a[j], a[i]
	a[i].at, a[j].at = i, j
}

// Push adds an entry.
func (a *agenda) Push(x any) {
	k := x.(*entry)
	k.at = len(*a)
	*a = append(*a, k)
}

// Pop removes the last entry.
func (a *agenda) Pop() any {
	old := *a
	k := old[len(old)-1]
	old[len(old)-1], *a = nil, old[:len(old)-1]
	k.at = -1
	return k
}
