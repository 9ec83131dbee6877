package mysql

import (
	"context"
	"time"

	"github.com/interlock-dev/interlock/driver"
)

// hold keeps a prepared branch and its session for Keep.
func (p *Participant) hold(b *branch) {
	if !p.keeps(b) {
		b.discard()
	}
}

func (p *Participant) keeps(b *branch) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.kept == nil || p.keep < 0 {
		return false
	}
	p.kept[b.x] = b
	b.until = time.AfterFunc(p.keep, func() { // it was not finished in time
		if p.taken(b) {
			b.discard()
		}
	})
	return true
}

// taken removes a branch from the kept ones, and reports whether it was one.
func (p *Participant) taken(b *branch) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.kept[b.x] != b {
		return false
	}
	delete(p.kept, b.x)
	return true
}

// take removes and returns the kept branch, or returns nil.
func (p *Participant) take(x driver.XID) *branch {
	p.mu.Lock()
	defer p.mu.Unlock()
	b := p.kept[x]
	if b != nil {
		delete(p.kept, x)
		b.until.Stop()
	}
	return b
}

// finish ends a prepared branch in its own session, which then returns to the pool.
func (b *branch) finish(ctx context.Context, op, statement string) error {
	_, err := b.conn.ExecContext(ctx, statement+b.xid)
	if err != nil {
		b.discard()
		return b.p.failed(ctx, op, b.x, err)
	}
	return b.close()
}

// Close closes the kept sessions: their branches stay prepared, and others can finish them. It
// closes neither the pool nor branches in progress.
func (p *Participant) Close() {
	p.mu.Lock()
	kept := p.kept
	p.kept = nil
	p.mu.Unlock()
	for _, b := range kept {
		b.until.Stop()
		b.discard()
	}
}
