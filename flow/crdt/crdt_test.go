package crdt

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

func TestMain(m *testing.M) { testbed.Main(m) }

var ok = testbed.OK

// TestORSetKeepsNoTombstones: removed elements leave no space behind.
func TestORSetKeepsNoTombstones(t *testing.T) {
	var s, other ORSet
	for i := range 1000 {
		delta, err := s.Add("eu", fmt.Sprint(i%100))
		ok(t, err)
		other.Merge(delta)
		other.Merge(s.Remove(fmt.Sprint((i + 50) % 100)))
	}
	for i := range 100 {
		other.Merge(s.Remove(fmt.Sprint(i)))
	}
	for _, x := range []*ORSet{&s, &other} {
		if b := encoded(t, x); x.Len() != 0 || len(b) > 16 {
			t.Errorf("%d elements, %d bytes", x.Len(), len(b))
		}
	}
}

// TestTakenIsKnownWithAdded: a delta of a Take includes the additions of the units.
func TestTakenIsKnownWithAdded(t *testing.T) {
	var eu, us, ap Bounded
	for _, operation := range []func() (Bounded, error){
		func() (Bounded, error) { return eu.Add("eu", 5) },
		func() (Bounded, error) { return eu.Move("eu", "us", 4) },
		func() (Bounded, error) { return us.Take("us", 3) },
	} {
		delta, err := operation()
		ok(t, err)
		us.Merge(delta)
		ap = Bounded{} // it receives the last delta only
		ap.Merge(delta)
	}
	if ap.Value() != 2 || us.Share("us") != 1 {
		t.Errorf("%d units are left, and a share of %d", ap.Value(), us.Share("us"))
	}
}

func TestBadOperations(t *testing.T) {
	at, long := driver.Stamp{Version: 1}, strings.Repeat("x", driver.MaxValue+1)
	for name, operation := range map[string]func() (Type, error){
		"no replica":       func() (Type, error) { var c GCounter; _, err := c.Add("", 1); return &c, err },
		"NUL":              func() (Type, error) { var c PNCounter; _, err := c.Add("a\x00", 1); return &c, err },
		"set's replica":    func() (Type, error) { var s ORSet; _, err := s.Add("\xff", ""); return &s, err },
		"count down":       func() (Type, error) { var c GCounter; _, err := c.Add("eu", -1); return &c, err },
		"count too far":    func() (Type, error) { var c GCounter; _, err := c.Add("eu", MaxCount+1); return &c, err },
		"subtract too far": func() (Type, error) { var c PNCounter; _, err := c.Add("eu", math.MinInt64); return &c, err },
		"long element":     func() (Type, error) { var s ORSet; _, err := s.Add("eu", long); return &s, err },
		"no stamp":         func() (Type, error) { var r Register; _, err := r.Set("x", driver.Stamp{}); return &r, err },
		"long value":       func() (Type, error) { var r Register; _, err := r.Set(long, at); return &r, err },
		"long key":         func() (Type, error) { var m Map; _, err := m.Delete(long, at); return &m, err },
		"take negative":    func() (Type, error) { var b Bounded; _, err := b.Take("eu", -1); return &b, err },
		"add negative":     func() (Type, error) { var b Bounded; _, err := b.Add("eu", -1); return &b, err },
		"move to itself":   func() (Type, error) { var b Bounded; _, err := b.Move("eu", "eu", 0); return &b, err },
		"move to nobody":   func() (Type, error) { var b Bounded; _, err := b.Move("eu", "", 0); return &b, err },
	} {
		value, err := operation()
		if err == nil || interlock.Kind(err) != interlock.Bug {
			t.Errorf("%s: %v", name, err)
		}
		if l := value.state(); len(l.Max) != 0 || len(l.Dots) != 0 {
			t.Errorf("%s: %v", name, l)
		}
	}
	s := ORSet{l: driver.Lattice{Seen: map[string]driver.Ranges{"eu": {{First: 1, Last: driver.MaxDot}}}}}
	if _, err := s.Add("eu", "x"); interlock.Kind(err) != interlock.Bug || s.Len() != 0 {
		t.Errorf("a replica without numbers: %v", err)
	}
}

// TestSumStops: impossible counts do not overflow.
func TestSumStops(t *testing.T) {
	var c PNCounter
	for i := range 1100 {
		for _, sign := range []int64{1, -1} {
			if _, err := c.Add(fmt.Sprint(i), sign*MaxCount); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := c.Add(fmt.Sprint(i), 1); err == nil {
			t.Fatal("it counts beyond the largest count")
		}
	}
	if c.Value() != 0 || sum(c.l, "+") != math.MaxInt64 {
		t.Errorf("%d, of %d", c.Value(), sum(c.l, "+"))
	}
	var set, seen ORSet // the numbers that were seen add up to 2^63
	_, err := set.Add("0", "element")
	seen.l.Seen = map[string]driver.Ranges{}
	for i := range 1024 {
		seen.l.Seen[fmt.Sprint(i)] = driver.Ranges{{First: 1, Last: driver.MaxDot}}
	}
	if set.Merge(seen); err != nil || set.Len() > 0 {
		t.Errorf("%q is left of what others have removed: %v", set.Elements(), err)
	}
}

// damaged returns values that no operation produces.
func damaged() map[string]Type {
	counts := func(fields ...string) driver.Lattice {
		l := driver.Lattice{Max: map[string]string{}}
		for _, field := range fields {
			l.Max[field] = driver.FormatPadded(1)
		}
		return l
	}
	value := func(text string) driver.Lattice { return driver.Lattice{Max: map[string]string{"": text}} }
	dot, seen := driver.Dot{Replica: "eu", N: 1}, map[string]driver.Ranges{"eu": {{First: 1, Last: 1}}}
	one := driver.FormatPadded(1)
	return map[string]Type{
		"a counter down":         &GCounter{counts("-eu")},
		"a counter of nobody":    &GCounter{counts("+")},
		"a counter without sign": &PNCounter{counts("eu")},
		"no field":               &PNCounter{counts("")},
		"a count in words":       &PNCounter{driver.Lattice{Max: map[string]string{"+eu": "1"}}},
		"a count of 0":           &PNCounter{driver.Lattice{Max: map[string]string{"+eu": driver.FormatPadded(0)}}},
		"a count too large":      &PNCounter{driver.Lattice{Max: map[string]string{"+eu": driver.FormatPadded(MaxCount + 1)}}},
		"a counter with dots":    &PNCounter{driver.Lattice{Seen: seen}},
		"moved to nobody":        &Bounded{counts(">eu")},
		"moved to itself":        &Bounded{counts(">eu\x00eu")},
		"moved to NUL":           &Bounded{counts(">eu\x00us\x00ap")},
		"a set with fields":      &ORSet{l: counts("+eu")},
		"an unseen addition":     &ORSet{l: driver.Lattice{Dots: map[driver.Dot]string{dot: "x"}}},
		"a range upside down":    &ORSet{l: driver.Lattice{Seen: map[string]driver.Ranges{"eu": {{First: 2, Last: 1}}}}},
		"a register with keys":   &Register{Map{driver.Lattice{Max: map[string]string{"k": one + "\x001x"}}}},
		"a value without stamp":  &Register{Map{value("x")}},
		"a value without flag":   &Register{Map{value(one + "\x00")}},
		"a deleted value":        &Register{Map{value(one + "\x000x")}},
		"a version of 0":         &Map{value(driver.FormatPadded(0) + "\x001")},
		"a bad tie":              &Map{value(one + "\xff\x001")},
		"a long value":           &Map{value(one + "\x001" + strings.Repeat("x", driver.MaxValue+1))},
		"a long key":             &Map{driver.Lattice{Max: map[string]string{strings.Repeat("k", driver.MaxName+1): one + "\x001"}}},
	}
}

func TestDecodeRefuses(t *testing.T) {
	for name, value := range damaged() {
		if err := Decode(encode(value.kind(), *value.state()), value); err == nil || interlock.Kind(err) != interlock.Definite {
			t.Errorf("%s: %v", name, err)
		}
	}
	var c GCounter
	if _, err := c.Add("eu", 7); err != nil {
		t.Fatal(err)
	}
	good := encoded(t, &c)
	for name, data := range map[string][]byte{
		"nothing": nil, "another version": append([]byte{2}, good[1:]...), "another type": append([]byte{1, 2}, good[2:]...),
		"a part": good[:len(good)-1], "more": append(good[:len(good):len(good)], 0), "a long number": {1, 1, 0x80, 0, 0, 0},
		"a large number": {1, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f}, "a long list": {1, 1, 0xff, 0xff, 3, 0, 0},
		"too long": make([]byte, MaxEncoded+1),
	} {
		if err := Decode(data, &c); err == nil || interlock.Kind(err) != interlock.Definite || c.Value() != 7 {
			t.Errorf("%s: %v, and the value is %d", name, err, c.Value())
		}
	}
	var s ORSet
	for i := range 20 {
		if _, err := s.Add("eu", fmt.Sprint(i)+strings.Repeat("x", driver.MaxValue-2)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Encode(&s); interlock.Kind(err) != interlock.Bug {
		t.Errorf("too long to encode: %v", err)
	}
}

// FuzzDecode: decoding returns a valid value, which has one encoding.
func FuzzDecode(f *testing.F) {
	types := func() []Type {
		return []Type{&GCounter{}, &PNCounter{}, &ORSet{}, &Register{}, &Map{}, &Bounded{}}
	}
	for _, x := range types() {
		f.Add(encoded(f, x))
	}
	for _, x := range damaged() {
		if b := encode(x.kind(), *x.state()); len(b) < 1000 {
			f.Add(b)
		}
	}
	f.Add([]byte("\x01\x01\x01\x03+eu\x130000000000000000007\x00\x00"))
	f.Add([]byte("\x01\x03\x00\x01\x02eu\x02\x01x\x01\x02eu\x02\x01\x02\x04\x04"))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, x := range types() {
			if Decode(data, x) != nil {
				continue
			}
			if got := encoded(t, x); string(got) != string(data) {
				t.Fatalf("%q is encoded as %q", data, got)
			}
			if b, ok := x.(*Bounded); ok {
				_ = b.Share("eu")
			}
		}
	})
}
