package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/internal/join"
)

// tokenCounter keeps the base of a session, from which its tokens are counted. The
// driver's mutex guards its fields.
type tokenCounter struct {
	*session
	base   base
	seen   scale // the highest adopted
	newest int64 // the newest transaction known
}

// current returns the base as last read. It reads it again after [tokenCounter.forget].
func (c *tokenCounter) current(ctx context.Context) (base, error) {
	c.d.mu.Lock()
	b := c.base
	c.d.mu.Unlock()
	if b.mod != 0 {
		return b, nil
	}
	return c.raise(ctx, 1)
}

// raise makes the next counter at least floor and higher than all that this session has
// seen, on a scale that covers it.
func (c *tokenCounter) raise(ctx context.Context, floor int64) (base, error) {
	for n := range attempts {
		b, err := c.raiseOnce(ctx, floor)
		switch {
		case err == nil:
			c.adopt(b)
			return b, nil
		case errors.Is(err, zk.ErrBadVersion):
			c.backOff(ctx, n+1)
		case errors.Is(err, zk.ErrNodeExists), errors.Is(err, zk.ErrNoNode):
		default:
			return base{}, err
		}
	}
	return base{}, fail.New(opRaise, "", interlock.Retryable, errors.New("other clients kept changing it"))
}

const opRaise = "raise base of tokens"

// crowd spreads sessions that raise the base at once: each first write of one makes the
// second write of the others fail.
var crowd = backoff.Policy{First: 20 * time.Millisecond, Max: time.Second}

func (c *tokenCounter) backOff(ctx context.Context, failed int) {
	ctx, stop := join.Context(ctx, c.ctx)
	defer stop()
	crowd.Wait(ctx, failed)
}

// raiseOnce reads the base, and raises it if it is too low. It first writes the node
// unchanged, to read the current transaction id, which becomes the anchor, and the server's
// clock. The version makes the second write fail if there was a change in between.
func (c *tokenCounter) raiseOnce(ctx context.Context, floor int64) (base, error) {
	b, err := c.read(ctx)
	if errors.Is(err, zk.ErrNoNode) || err == nil && b.mark == "" {
		return base{}, c.create(ctx)
	}
	own := c.d.options.Now()
	if err != nil || !c.isBehind(b, floor) && driver.Plausible(b.top(b.mod), own) == nil {
		return b, err
	}
	stat, err := c.write(ctx, b, b.same())
	if err != nil {
		return base{}, err
	}
	b.version, b.mod = stat.Version, stat.Mzxid
	server := time.UnixMilli(stat.Mtime)
	if err := driver.Plausible(b.top(b.mod), server); err != nil {
		return c.repair(ctx, b, server, err)
	}
	if !c.isBehind(b, floor) {
		return b, nil
	}
	if err := driver.SameClock(own, server); err != nil {
		return base{}, refusedBase(err)
	}
	// at least the clock, as a base that another session raised may be lost; above the clock,
	// so that sessions that open now need no raise
	return c.put(ctx, b, c.wanted(b, max(floor, interlock.CounterAt(own))+driver.Headroom.Microseconds()))
}

// put writes a new scale over b, with records if there are any.
func (c *tokenCounter) put(ctx context.Context, b base, next scale, records ...any) (base, error) {
	out := b.next(next)
	if out.Base > interlock.MaxCounter {
		return base{}, refusedBase(errExhausted)
	}
	stat, err := c.write(ctx, b, encode(out), records...)
	if err != nil {
		return base{}, err
	}
	return base{scale: out.scale, version: stat.Version, mod: stat.Mzxid, since: stat.Mzxid, earlier: out.Earlier, mark: b.mark}, nil
}

// repair lowers an implausible base to the clock, if Options ask for that, and
// records it as a forced release of driver.BaseName.
func (c *tokenCounter) repair(ctx context.Context, b base, server time.Time, implausible error) (base, error) {
	repair := c.d.options.Seed.Repair
	if c.d.mu.Lock(); c.seen != (scale{}) {
		repair = nil
	}
	c.d.mu.Unlock()
	if repair == nil {
		return base{}, refusedBase(implausible)
	}
	if err := driver.SameClock(c.d.options.Now(), server); err != nil {
		return base{}, refusedBase(err)
	}
	if err := c.d.makeRecords(ctx, c.session); err != nil {
		return base{}, err
	}
	next := scale{Base: interlock.CounterAt(c.d.options.Now().Add(driver.Headroom)), Anchor: b.mod}
	record := broken{Name: driver.BaseName, Owner: text(repair.Record(b.top(b.mod), next.Base)),
		Reason: text(repair.Reason), By: text(repair.By)}
	return c.put(ctx, b, next, &zk.CreateRequest{Path: c.d.layout.breaks() + "/b-", Data: encode(record),
		Acl: c.d.options.ACL, Flags: zk.FlagSequence})
}

func refusedBase(err error) error {
	return fail.New(opRaise, "", interlock.Definite, err)
}

// write writes data over b, and fails if the base is no longer b.
func (c *tokenCounter) write(ctx context.Context, b base, data []byte, records ...any) (*zk.Stat, error) {
	path := c.d.layout.base()
	ops := append([]any{
		&zk.CheckVersionRequest{Path: path + "/" + b.mark, Version: -1},
		&zk.SetDataRequest{Path: path, Data: data, Version: b.version},
	}, records...)
	done, err := ask(ctx, c.session, opRaise, "", func(conn *zk.Conn) ([]zk.MultiResponse, error) { return conn.Multi(ops...) })
	if err != nil {
		return nil, err
	}
	return done[1].Stat, nil
}

// read reads the mark before the node: if the mark still exists later, it belongs to that
// node.
func (c *tokenCounter) read(ctx context.Context) (base, error) {
	marks, err := c.children(ctx, opRaise, "", c.d.layout.base())
	if err != nil {
		return base{}, err
	}
	type reply struct {
		data []byte
		stat *zk.Stat
	}
	r, err := ask(ctx, c.session, opRaise, "", func(conn *zk.Conn) (reply, error) {
		data, stat, err := conn.Get(c.d.layout.base())
		return reply{data, stat}, err
	})
	if err != nil {
		return base{}, err
	}
	b, err := readBase(r.data, r.stat)
	if err != nil {
		return base{}, refusedBase(err)
	}
	if len(marks) > 0 {
		b.mark = slices.Min(marks) // sessions that create the node at once may create several
	}
	return b, nil
}

// create creates the node, empty: its content depends on the transaction that creates it. A
// node without a mark gets one.
func (c *tokenCounter) create(ctx context.Context) error {
	path := c.d.layout.base()
	for _, p := range append(parents(path), path, path+"/"+newID()) {
		_, err := ask(ctx, c.session, opRaise, "", func(conn *zk.Conn) (struct{}, error) {
			return struct{}{}, makeNode(conn, p, zk.FlagPersistent, c.d.options.ACL)
		})
		if err != nil && !errors.Is(err, zk.ErrNodeExists) {
			return err
		}
	}
	return zk.ErrNoNode // the caller reads it
}

// isBehind reports whether b must be raised, by the last change of its node and the
// newest transaction known.
func (c *tokenCounter) isBehind(b base, floor int64) bool {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	return b.scale == (scale{}) || !b.follows(c.seen) || !b.covers(max(b.mod, c.newest)) || b.top(b.mod) < floor
}

// wanted returns the scale that starts with the last change of b's node.
func (c *tokenCounter) wanted(b base, floor int64) scale {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	return scale{Base: max(floor, c.seen.top(b.mod), b.top(b.mod)), Anchor: b.mod}
}

func (c *tokenCounter) adopt(b base) {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	if b.mod >= c.base.mod {
		c.base = b
	}
	if b.follows(c.seen) {
		c.seen = b.scale
	}
}

// forget makes the next contender read the base again.
func (c *tokenCounter) forget() {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	c.base = base{}
}

// Token returns the token of the contender whose node was created by transaction czxid. It is for
// writers that queued with another client and use the same guard. It reads the base of the
// namespace, with the former ones that its node keeps. The error is Definite if none of them covers
// czxid, or if the counter is out of range.
func (d *Driver) Token(ctx context.Context, czxid int64) (interlock.Token, error) {
	b, err := d.baseForConversion(ctx)
	if err != nil {
		return 0, err
	}
	for _, s := range b.scales() {
		if czxid > s.Since {
			return s.token(czxid)
		}
	}
	return 0, fail.New("convert transaction id", "", interlock.Definite, fmt.Errorf("no base is known for %#x", czxid))
}

// Zxid returns the transaction that created the node of the contender with a token. Its errors are
// those of Token.
func (d *Driver) Zxid(ctx context.Context, token interlock.Token) (int64, error) {
	b, err := d.baseForConversion(ctx)
	if err != nil {
		return 0, err
	}
	until := int64(math.MaxInt64)
	for _, s := range b.scales() {
		if zxid := token.Counter() - s.Base + s.Anchor; zxid > s.Since && zxid < until && s.covers(zxid) {
			return zxid, nil
		}
		until = s.Since
	}
	return 0, fail.New("convert token", "", interlock.Definite, fmt.Errorf("no base of this namespace yields %v", token))
}

func (d *Driver) baseForConversion(ctx context.Context) (base, error) {
	s, err := d.current(ctx)
	if err != nil {
		return base{}, err
	}
	if err := s.sync(ctx, "read base of tokens", ""); err != nil {
		return base{}, harmless(err)
	}
	b, err := s.counter.read(ctx)
	return b, harmless(err)
}
