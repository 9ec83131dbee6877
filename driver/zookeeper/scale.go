package zookeeper

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/go-zookeeper/zk"

	"github.com/interlock-dev/interlock"
)

// scale turns transaction ids into counters: Base + (czxid − Anchor). It covers span transactions
// from the anchor on. After them, and after an election, which moves the ids by 2^32, it must be
// replaced. So its highest counter is bounded without a clock.
type scale struct {
	Base   int64 `json:"base"`
	Anchor int64 `json:"anchor"`
}

// span is the number of transactions that a scale covers. It is also how far, in microseconds,
// an election may move a counter ahead of the clock: 17 seconds.
const span = 1 << 24

// errSpent means that the scale does not cover the transaction.
var errSpent = errors.New("its base of tokens is used up")

var errExhausted = errors.New("the counter is out of range, and no token can be issued in this namespace any more")

// covers reports whether czxid has a token on the scale.
func (s scale) covers(czxid int64) bool { return czxid >= s.Anchor && czxid-s.Anchor < span }

// top returns an upper bound of the counters granted up to a transaction.
func (s scale) top(zxid int64) int64 { return s.Base + min(max(0, zxid-s.Anchor), span) }

// follows reports whether every counter of s is above those that prev gave before s was written.
func (s scale) follows(prev scale) bool {
	return s == prev || s.Anchor >= prev.Anchor && s.Base >= prev.top(s.Anchor)
}

func (s scale) token(czxid int64) (interlock.Token, error) {
	const op = "make token"
	refuse := func(err error) (interlock.Token, error) {
		return 0, fail.New(op, "", interlock.Definite, fmt.Errorf("of transaction %#x on base %d and anchor %#x: %w", czxid, s.Base, s.Anchor, err))
	}
	switch {
	case s.Base < 1 || s.Base > interlock.MaxCounter || s.Anchor < 0 || czxid < 1:
		return refuse(errors.New("it is not a base of tokens"))
	case !s.covers(czxid):
		return refuse(errSpent)
	case s.Base+czxid-s.Anchor > interlock.MaxCounter:
		return refuse(errExhausted)
	}
	return interlock.NewToken(s.Base+czxid-s.Anchor, 0)
}

// base is the scale of the namespace as read from its node.
type base struct {
	scale
	version int32 // of the node
	mod     int64 // the transaction that wrote the node last; 0 if unknown
	since   int64 // the transaction that wrote the scale
	earlier []former
	// mark is the random name of a child. While the child exists, the node was not deleted
	// and created again, up to the same version.
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
	Since   int64    `json:"since,omitempty"`   // 0 in the write of the scale itself, whose id is not known yet
	Earlier []former `json:"earlier,omitempty"` // the newest last
}

func readBase(data []byte, stat *zk.Stat) (base, error) {
	b := base{version: stat.Version, mod: stat.Mzxid, since: stat.Mzxid}
	if len(data) == 0 {
		return b, nil // created, but not yet set
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

// same returns the content for a write that changes nothing.
func (b base) same() []byte {
	if b.scale == (scale{}) {
		return nil
	}
	return encode(stored{scale: b.scale, Since: b.since, Earlier: b.earlier})
}

// next returns the content to store for a new scale.
func (b base) next(s scale) stored {
	out := stored{scale: s, Earlier: b.earlier}
	if b.scale != (scale{}) {
		out.Earlier = append(out.Earlier[:len(out.Earlier):len(out.Earlier)], former{b.scale, b.since})
	}
	out.Earlier = out.Earlier[max(0, len(out.Earlier)-kept):]
	return out
}

// scales lists all known scales, the newest first.
func (b base) scales() []former {
	all := []former{{b.scale, b.since}}
	for i := len(b.earlier) - 1; i >= 0; i-- {
		all = append(all, b.earlier[i])
	}
	return all
}
