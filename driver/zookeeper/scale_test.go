package zookeeper

import (
	"math"
	"testing"

	"github.com/go-zookeeper/zk"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/testbed"
)

func TestScale(t *testing.T) {
	t.Parallel()
	const floor = 217_000_000_000_000
	for _, c := range []struct {
		scale scale
		czxid int64
		want  int64 // 0: refused
	}{
		{scale{floor, 0x100000010}, 0x100000010, floor},
		{scale{floor, 0x100000010}, 0x100000011, floor + 1},
		{scale{floor, 0x100000010}, 0x10000000f, 0}, // before it
		{scale{floor, 0x100000010}, 0x100000010 + span - 1, floor + span - 1},
		{scale{floor, 0x100000010}, 0x100000010 + span, 0},
		{scale{floor, 0x100000010}, 0x200000010, 0},   // an election
		{scale{floor, 1 << 60}, 1<<60 + 5, floor + 5}, // more than a counter holds
		{scale{interlock.MaxCounter, 10}, 10, interlock.MaxCounter},
		{scale{interlock.MaxCounter, 10}, 11, 0},
		{scale{floor, 0}, math.MaxInt64, 0},
		{scale{}, 7, 0},
		{scale{floor, 1}, 0, 0},
	} {
		token, err := c.scale.token(c.czxid)
		if (err != nil) != (c.want == 0) || err == nil && (token.Counter() != c.want || token.Sub() != 0) {
			t.Errorf("%#x on %+v: %d, %v; want %d", c.czxid, c.scale, token.Counter(), err, c.want)
		}
		if err != nil && interlock.Kind(err) != interlock.Definite {
			t.Errorf("%v is %v", err, interlock.Kind(err))
		}
	}
}

// TestRaisingNeverLowers: with any clocks and any elections in between, tokens rise, and start at
// the floor.
func TestRaisingNeverLowers(t *testing.T) {
	t.Parallel()
	d := &Driver{}
	s := &tokenCounter{session: &session{d: d}}
	b := base{mod: 50}
	last := int64(0)
	for i, step := range []struct{ floor, by int64 }{
		{1000, 10}, {500, 10}, {5000, 10}, {1, 10}, {5001, 100}, {1, span - 200}, {1, 300}, {1, 1 << 32}, {1, 10},
		{1, 1 << 32}, {1e9, 1 << 33}, {2, span}, {1, span - 1},
	} {
		b.mod += step.by
		if s.isBehind(b, step.floor) {
			b = base{scale: s.wanted(b, step.floor), mod: b.mod + 1}
		}
		s.adopt(b)
		token, err := b.token(b.mod)
		testbed.OK(t, err)
		if token.Counter() <= last || token.Counter() < step.floor {
			t.Fatalf("step %d: counter %d after %d, floor %d", i, token.Counter(), last, step.floor)
		}
		if most := max(last+step.by, last+span, step.floor) + 1; token.Counter() > most {
			t.Fatalf("step %d: counter %d after %d, which is further than %d", i, token.Counter(), last, most)
		}
		last = token.Counter()
	}
	// the base was deleted or lowered: this session keeps the highest one
	for _, low := range []base{{mod: b.mod + 1}, {scale: scale{Base: 3, Anchor: b.mod}, mod: b.mod + 1}} {
		if !s.isBehind(low, 1) {
			t.Fatalf("%+v is not raised", low)
		}
		token, err := s.wanted(low, 1).token(low.mod + 1)
		if err != nil || token.Counter() <= last {
			t.Fatalf("counter %d after %d, %v", token.Counter(), last, err)
		}
	}
}

// TestFormerScalesAreKept: former scales survive encoding and decoding.
func TestFormerScalesAreKept(t *testing.T) {
	t.Parallel()
	b := base{}
	for i := range int64(kept + 5) {
		out := b.next(scale{Base: 1000 + 10*i, Anchor: 100 + i})
		var err error
		if b, err = readBase(encode(out), &zk.Stat{Version: int32(i), Mzxid: 200 + i}); err != nil {
			t.Fatal(err)
		}
	}
	all := b.scales()
	if len(all) != kept+1 {
		t.Fatalf("%d are kept", len(all))
	}
	for i, s := range all {
		at := int64(kept+4) - int64(i)
		if s != (former{scale{1000 + 10*at, 100 + at}, 200 + at}) {
			t.Fatalf("scale %d is %+v", i, s)
		}
	}
	// a write that changes nothing does not move the start of the scale
	same, err := readBase(b.same(), &zk.Stat{Version: 99, Mzxid: 999})
	if err != nil || same.since != b.since || same.scale != b.scale || same.mod != 999 {
		t.Fatalf("%+v became %+v, %v", b, same, err)
	}
	for _, bad := range []string{"x", "{}", `{"base":-1,"anchor":1}`, `{"base":5,"anchor":-1}`, `{"base":9e18}`} {
		if got, err := readBase([]byte(bad), &zk.Stat{}); err == nil {
			t.Errorf("%s is read as %+v", bad, got)
		}
	}
}
