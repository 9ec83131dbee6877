package sequence

import (
	"context"
	"slices"
	"sync"
)

// Memory keeps positions and holes in this process, and forgets them with it: after
// a restart every key begins again. It is the specification of a [Store], and enough
// where the source begins again as well. Effects of a handler that fails stay. The
// zero value is ready.
type Memory struct {
	mu   sync.Mutex
	keys map[[2]string]*remembered
}

var _ Store[struct{}] = (*Memory)(nil)

type remembered struct {
	mu    sync.Mutex // held while the key is moved
	at    Position
	holes []Hole // open
}

func (r *remembered) state() State { return State{Position: r.at, Holes: int64(len(r.holes))} }

func (m *Memory) key(stream, key string) *remembered {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.keys == nil {
		m.keys = map[[2]string]*remembered{}
	}
	r := m.keys[[2]string{stream, key}]
	if r == nil {
		r = &remembered{}
		m.keys[[2]string{stream, key}] = r
	}
	return r
}

// Load tells where a key is; see [Store].
func (m *Memory) Load(ctx context.Context, stream, key string) (State, error) {
	if err := ctx.Err(); err != nil {
		return State{}, context.Cause(ctx)
	}
	r := m.key(stream, key)
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state(), nil
}

// Advance makes a move; see [Store].
func (m *Memory) Advance(ctx context.Context, move Move, fn func(context.Context, struct{}) error) error {
	r := m.key(move.Stream, move.Key)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.at != move.From {
		return moved(move.Key, move.From)
	}
	if err := fn(ctx, struct{}{}); err != nil {
		return err
	}
	if r.at = move.To; move.Hole != nil {
		r.holes = append(r.holes, *move.Hole)
	}
	return nil
}

// Fill takes a position out of its hole; see [Store].
func (m *Memory) Fill(ctx context.Context, stream, key string, at Position, fn func(context.Context, struct{}) error) (State, error) {
	r := m.key(stream, key)
	r.mu.Lock()
	defer r.mu.Unlock()
	i := slices.IndexFunc(r.holes, func(h Hole) bool { return h.has(at) })
	if i < 0 {
		return r.state(), noHole(key, at)
	}
	if err := fn(ctx, struct{}{}); err != nil {
		return State{}, err
	}
	before, after := r.holes[i].without(at.Seq)
	r.holes = slices.Replace(r.holes, i, i+1, slices.DeleteFunc([]Hole{before, after}, Hole.empty)...)
	return r.state(), nil
}

// Holes is the open holes of a stream's key, in their order.
func (m *Memory) Holes(stream, key string) []Hole {
	r := m.key(stream, key)
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.holes)
}

// without is what remains of a hole on both sides of an event that came.
func (h Hole) without(seq int64) (before, after Hole) {
	before, after = h, h
	before.To, after.From = seq-1, seq+1
	return before, after
}

func (h Hole) empty() bool { return h.From > h.To }
