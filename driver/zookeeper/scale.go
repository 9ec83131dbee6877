package zookeeper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/backoff"
)

// scale makes counters of transaction ids: Base + (czxid − Anchor). It is good
// for span transactions from the anchor on. Then, and when an election has moved
// the ids by 2^32, it must be replaced; the process that does that knows without any clock
// how far the counters can have come.
type scale struct {
	Base   int64 `json:"base"`
	Anchor int64 `json:"anchor"`
}

// span is how many transactions a scale is good for. It is also by how much a
// counter may get ahead of the clock through an election: 17 seconds.
const span = 1 << 24

// errSpent says that a transaction is beyond what its scale is good for.
var errSpent = errors.New("its base of tokens is spent")

var errExhausted = errors.New("the counter is out of range, and no token can be issued in this namespace any more")

// covers reports that the scale can give a token to czxid.
func (s scale) covers(czxid int64) bool { return czxid >= s.Anchor && czxid-s.Anchor < span }

// top is above every counter that was given up to a transaction, or at it.
func (s scale) top(zxid int64) int64 { return s.Base + min(max(0, zxid-s.Anchor), span) }

// follows reports that no counter of s is at or below one that was given by
// prev before s came.
func (s scale) follows(prev scale) bool {
	return s == prev || s.Anchor >= prev.Anchor && s.Base >= prev.top(s.Anchor)
}

func (s scale) token(czxid int64) (interlock.Token, error) {
	const op = "make token"
	fail := func(err error) (interlock.Token, error) {
		return 0, &interlock.Error{Op: op, Driver: driverName, Kind: interlock.Definite,
			Err: fmt.Errorf("of transaction %#x on base %d and anchor %#x: %w", czxid, s.Base, s.Anchor, err)}
	}
	switch {
	case s.Base < 1 || s.Base > interlock.MaxCounter || s.Anchor < 0 || czxid < 1:
		return fail(errors.New("that is no base"))
	case !s.covers(czxid):
		return fail(errSpent)
	case s.Base+czxid-s.Anchor > interlock.MaxCounter:
		return fail(errExhausted)
	}
	return interlock.NewToken(s.Base+czxid-s.Anchor, 0)
}

// base is the scale of the namespace as it stands in its node.
type base struct {
	scale
	version int32 // of the node
	mod     int64 // the transaction that wrote the node last; 0 if nothing is known
	since   int64 // the transaction that wrote the scale
	earlier []former
	// mark is the name of a child, random and made once: while it is there, the
	// node is the one that was read, and not one that was created again and has reached
	// the same version.
	mark string
}

// former is a scale that was valid from a transaction on, until the next.
type former struct {
	scale
	Since int64 `json:"since"`
}

// kept is how many former scales the node keeps, for conversions.
const kept = 64

// stored is the data of the base's node.
type stored struct {
	scale
	Since   int64    `json:"since,omitempty"`   // 0 in the write that brings the scale, which cannot know
	Earlier []former `json:"earlier,omitempty"` // the newest last
}

func readBase(data []byte, stat *zk.Stat) (base, error) {
	b := base{version: stat.Version, mod: stat.Mzxid, since: stat.Mzxid}
	if len(data) == 0 {
		return b, nil // it was created, and not yet set
	}
	var s stored
	if err := json.Unmarshal(data, &s); err != nil || s.Base < 1 || s.Base > interlock.MaxCounter || s.Anchor < 0 {
		return base{}, fmt.Errorf("the node of the base of tokens holds %q", data)
	}
	b.scale, b.earlier = s.scale, s.Earlier
	if s.Since != 0 {
		b.since = s.Since
	}
	return b, nil
}

// LastCounter returns the counter up to which tokens may have been issued, read from the
// node of the base, [driver.BaseName] below the root; 0 if the node has no base yet. It
// fails, as [Open] does, if the node holds anything else.
func LastCounter(data []byte, stat *zk.Stat) (int64, error) {
	b, err := readBase(data, stat)
	if err != nil || b.scale == (scale{}) {
		return 0, err
	}
	return b.top(b.mod), nil
}

// same is what to store to change nothing.
func (b base) same() []byte {
	if b.scale == (scale{}) {
		return nil
	}
	return encode(stored{scale: b.scale, Since: b.since, Earlier: b.earlier})
}

// next is what to store for a new scale.
func (b base) next(s scale) stored {
	out := stored{scale: s, Earlier: b.earlier}
	if b.scale != (scale{}) {
		out.Earlier = append(out.Earlier[:len(out.Earlier):len(out.Earlier)], former{b.scale, b.since})
	}
	out.Earlier = out.Earlier[max(0, len(out.Earlier)-kept):]
	return out
}

// scales are all that are known, the newest first.
func (b base) scales() []former {
	all := []former{{b.scale, b.since}}
	for i := len(b.earlier) - 1; i >= 0; i-- {
		all = append(all, b.earlier[i])
	}
	return all
}

// currentBase is the base as last read, or read again if it has changed.
func (s *session) currentBase(ctx context.Context) (base, error) {
	s.d.mu.Lock()
	b := s.base
	s.d.mu.Unlock()
	if b.mod != 0 {
		return b, nil
	}
	return s.raiseBase(ctx, 1)
}

// raiseBase makes sure that the next counter is at least floor, above all that
// this session has seen, and can be given by the scale.
func (s *session) raiseBase(ctx context.Context, floor int64) (base, error) {
	for n := range attempts {
		b, err := s.raiseOnce(ctx, floor)
		switch {
		case err == nil:
			s.adopt(b)
			return b, nil
		case errors.Is(err, zk.ErrBadVersion):
			s.giveRoom(ctx, n+1)
		case errors.Is(err, zk.ErrNodeExists), errors.Is(err, zk.ErrNoNode):
		default:
			return base{}, err
		}
	}
	return base{}, &interlock.Error{Op: opRaise, Driver: driverName, Kind: interlock.Retryable,
		Err: errors.New("others kept changing it")}
}

const opRaise = "raise base of tokens"

// crowd is how those keep out of each other's way who raise the base at once:
// the first write of one undoes what another has begun.
var crowd = backoff.Policy{First: 20 * time.Millisecond, Max: time.Second}

func (s *session) giveRoom(ctx context.Context, failed int) {
	timer := time.NewTimer(crowd.Delay(failed, rand.Float64()))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	case <-s.ctx.Done():
	}
}

// raiseOnce reads the base and raises it if it is behind. Then it first writes
// the node as it is, to learn the present transaction id, which becomes the
// anchor, and the server's clock; a change in between is refused by the
// version it relied on.
func (s *session) raiseOnce(ctx context.Context, floor int64) (base, error) {
	b, err := s.readBase(ctx)
	if errors.Is(err, zk.ErrNoNode) || err == nil && b.mark == "" {
		return base{}, s.createBase(ctx)
	}
	own := s.d.options.Now()
	if err != nil || !s.isBehind(b, floor) && driver.Plausible(b.top(b.mod), own) == nil {
		return b, err
	}
	stat, err := s.writeBase(ctx, b, b.same())
	if err != nil {
		return base{}, err
	}
	b.version, b.mod = stat.Version, stat.Mzxid
	server := time.UnixMilli(stat.Mtime)
	if err := driver.Plausible(b.top(b.mod), server); err != nil {
		return s.repairBase(ctx, b, server, err)
	}
	if !s.isBehind(b, floor) {
		return b, nil
	}
	if err := driver.SameClock(own, server); err != nil {
		return base{}, refusedBase(err)
	}
	// by the clock as well: another session may have raised it, and then it was
	// lost; and beyond it, so that others who open now find it high enough
	return s.putBase(ctx, b, s.wanted(b, max(floor, interlock.CounterAt(own))+driver.Headroom.Microseconds()))
}

// putBase writes a new scale over b, with records if there are any.
func (s *session) putBase(ctx context.Context, b base, next scale, records ...any) (base, error) {
	out := b.next(next)
	if out.Base > interlock.MaxCounter {
		return base{}, refusedBase(errExhausted)
	}
	stat, err := s.writeBase(ctx, b, encode(out), records...)
	if err != nil {
		return base{}, err
	}
	return base{scale: out.scale, version: stat.Version, mod: stat.Mzxid, since: stat.Mzxid, earlier: out.Earlier, mark: b.mark}, nil
}

// repairBase lowers an implausible base to the clock, if Options ask for that, and
// records it as a forced release of driver.BaseName.
func (s *session) repairBase(ctx context.Context, b base, server time.Time, implausible error) (base, error) {
	repair := s.d.options.Seed.Repair
	if s.d.mu.Lock(); s.seen != (scale{}) {
		repair = nil
	}
	s.d.mu.Unlock()
	if repair == nil {
		return base{}, refusedBase(implausible)
	}
	if err := driver.SameClock(s.d.options.Now(), server); err != nil {
		return base{}, refusedBase(err)
	}
	if err := s.d.makeRecords(ctx, s); err != nil {
		return base{}, err
	}
	next := scale{Base: interlock.CounterAt(s.d.options.Now().Add(driver.Headroom)), Anchor: b.mod}
	record := broken{Name: driver.BaseName, Owner: text(repair.Record(b.top(b.mod), next.Base)),
		Reason: text(repair.Reason), By: text(repair.By)}
	return s.putBase(ctx, b, next, &zk.CreateRequest{Path: s.d.layout.breaks() + "/b-", Data: encode(record),
		Acl: s.d.options.ACL, Flags: zk.FlagSequence})
}

func refusedBase(err error) error {
	return &interlock.Error{Op: opRaise, Driver: driverName, Kind: interlock.Definite, Err: err}
}

// writeBase writes over b, and over no other.
func (s *session) writeBase(ctx context.Context, b base, data []byte, records ...any) (*zk.Stat, error) {
	path := s.d.layout.base()
	ops := append([]any{
		&zk.CheckVersionRequest{Path: path + "/" + b.mark, Version: -1},
		&zk.SetDataRequest{Path: path, Data: data, Version: b.version},
	}, records...)
	done, err := ask(ctx, s, opRaise, "", func(c *zk.Conn) ([]zk.MultiResponse, error) { return c.Multi(ops...) })
	if err != nil {
		return nil, err
	}
	return done[1].Stat, nil
}

// readBase reads the mark first: if that is still there later, it is of the node
// that is read second.
func (s *session) readBase(ctx context.Context) (base, error) {
	marks, err := s.children(ctx, opRaise, "", s.d.layout.base())
	if err != nil {
		return base{}, err
	}
	type reply struct {
		data []byte
		stat *zk.Stat
	}
	r, err := ask(ctx, s, opRaise, "", func(c *zk.Conn) (reply, error) {
		data, stat, err := c.Get(s.d.layout.base())
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
		b.mark = slices.Min(marks) // those who made the node at once may have made several
	}
	return b, nil
}

// createBase makes the node, empty: what it must hold depends on when that was.
// It also gives one a mark that has none.
func (s *session) createBase(ctx context.Context) error {
	path := s.d.layout.base()
	for _, p := range append(parents(path), path, path+"/"+newID()) {
		_, err := ask(ctx, s, opRaise, "", func(c *zk.Conn) (string, error) {
			return c.Create(p, nil, zk.FlagPersistent, s.d.options.ACL)
		})
		if err != nil && !errors.Is(err, zk.ErrNodeExists) {
			return err
		}
	}
	return zk.ErrNoNode // and now read it
}

// isBehind reports that b must be raised, as of the last change of its node and
// of what else was seen to have happened.
func (s *session) isBehind(b base, floor int64) bool {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	return b.scale == (scale{}) || !b.follows(s.seen) || !b.covers(max(b.mod, s.newest)) || b.top(b.mod) < floor
}

// wanted is the scale that starts with the last change of b's node.
func (s *session) wanted(b base, floor int64) scale {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	return scale{Base: max(floor, s.seen.top(b.mod), b.top(b.mod)), Anchor: b.mod}
}

func (s *session) adopt(b base) {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	if b.mod >= s.base.mod {
		s.base = b
	}
	if b.follows(s.seen) {
		s.seen = b.scale
	}
}

// forgetBase has the next contender read it again.
func (s *session) forgetBase() {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	s.base = base{}
}

// Token is the token of the contender whose node was created by transaction
// czxid, for writers that took their place in the line with another client and
// want to pass the same guard. It reads the base of the namespace, and knows as
// many former ones as its node keeps; an error of kind Definite says that none
// is known for czxid, or that the counter is out of range.
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
	return 0, &interlock.Error{Op: "convert transaction id", Driver: driverName, Kind: interlock.Definite,
		Err: fmt.Errorf("no base is known for %#x", czxid)}
}

// Zxid is the transaction that created the contender which got token. Its
// errors are those of Token.
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
	return 0, &interlock.Error{Op: "convert token", Driver: driverName, Kind: interlock.Definite,
		Err: fmt.Errorf("no base of this namespace yields %v", token)}
}

func (d *Driver) baseForConversion(ctx context.Context) (base, error) {
	s, err := d.current(ctx)
	if err != nil {
		return base{}, err
	}
	if err := s.sync(ctx, "read base of tokens", ""); err != nil {
		return base{}, err
	}
	return s.readBase(ctx)
}
