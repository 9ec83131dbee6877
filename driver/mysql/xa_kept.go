package mysql

import (
	"context"
	"time"

	"github.com/interlock-dev/interlock/driver"
)

// hold keeps a prepared branch and its session, for as long as Keep says.
func (p *Participant) hold(b *branch) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.kept == nil || p.keep < 0 {
		b.discard()
		return
	}
	p.kept[b.x] = b
	b.until = time.AfterFunc(p.keep, func() { p.letGo(b) })
}

// letGo closes the session of a branch that nobody came to finish.
func (p *Participant) letGo(b *branch) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.kept[b.x] == b {
		delete(p.kept, b.x)
		b.discard()
	}
}

// take gives the branch whose session is kept to who finishes it; nil if there is none.
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

// finish ends a prepared branch in its own session, which is good for the pool then.
func (b *branch) finish(ctx context.Context, op, statement string) error {
	_, err := b.conn.ExecContext(ctx, statement+b.xid)
	if err != nil {
		b.discard()
		return b.p.failed(ctx, op, b.x, err)
	}
	return b.conn.Close()
}

// Close lets go of the sessions that are kept: their branches stay prepared, and are
// finished by others. It closes neither the pool nor branches that are worked in.
func (p *Participant) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, b := range p.kept {
		b.until.Stop()
		b.discard()
	}
	p.kept = nil
}
