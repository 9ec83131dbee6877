package sequence

import (
	"context"
	"slices"
	"sync"
)

// Memory is a [Store] in this process: after a restart every key begins again. It is the
// specification of a Store, and suits a source that begins again as well. Effects of a failing handler
// are not undone. The zero value works.
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

// Load returns the state of a key; see [Store].
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
		return conflict(move.Key, move.From)
	}
	if err := fn(ctx, struct{}{}); err != nil {
		return err
	}
	if r.at = move.To; move.Hole != nil {
		r.holes = append(r.holes, *move.Hole)
	}
	return nil
}

// Fill removes a position from its hole; see [Store].
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

// Holes returns the open holes of a key, in order.
func (m *Memory) Holes(stream, key string) []Hole {
	r := m.key(stream, key)
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.holes)
}

// without returns the parts of a hole before and after an event.
func (h Hole) without(seq int64) (before, after Hole) {
	before, after = h, h
	before.To, after.From = seq-1, seq+1
	return before, after
}

func (h Hole) empty() bool { return h.From > h.To }
