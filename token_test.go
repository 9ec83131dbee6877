package interlock

import (
	"math"
	"testing"
	"testing/quick"
	"time"
)

func TestTokenOrderIsCounterThenSub(t *testing.T) {
	ordered := func(c1, c2 int64, s1, s2 int) bool {
		a, err := NewToken(c1, s1)
		if err != nil {
			return false
		}
		b, err := NewToken(c2, s2)
		return err == nil && (a < b) == (c1 < c2 || c1 == c2 && s1 < s2) &&
			a.Counter() == c1 && a.Sub() == s1 && a.Valid()
	}
	within := func(x, y uint64, u, v uint16) bool {
		return ordered(int64(x%MaxCounter)+1, int64(y%MaxCounter)+1, int(u)%(MaxSub+1), int(v)%(MaxSub+1))
	}
	if err := quick.Check(within, nil); err != nil {
		t.Fatal(err)
	}
	if !ordered(MaxCounter, 1, MaxSub, 0) || !ordered(5, 5, MaxSub, 0) {
		t.Fatal("at the bounds")
	}
	if top, _ := NewToken(MaxCounter, MaxSub); int64(top) != math.MaxInt64 {
		t.Fatalf("the largest token is %d", top)
	}
}

func TestTokenRefusesWhatDoesNotFit(t *testing.T) {
	for _, c := range []struct {
		counter int64
		sub     int
	}{{0, 0}, {-1, 0}, {MaxCounter + 1, 0}, {1, -1}, {1, MaxSub + 1}} {
		if token, err := NewToken(c.counter, c.sub); err == nil || Kind(err) != Bug || token != 0 {
			t.Errorf("NewToken(%d, %d) = %d, %v", c.counter, c.sub, token, err)
		}
	}
}

func TestNextNeverWraps(t *testing.T) {
	token, _ := NewToken(7, MaxSub-1)
	next, ok := token.Next()
	if !ok || next.Counter() != 7 || next.Sub() != MaxSub {
		t.Fatalf("%d.%d, %v", next.Counter(), next.Sub(), ok)
	}
	if again, ok := next.Next(); ok || again != next {
		t.Fatalf("wrapped to %d.%d", again.Counter(), again.Sub())
	}
}

func TestParseTokenReadsWhatStringWrote(t *testing.T) {
	token, _ := NewToken(217_000_000_000_000, 3)
	if got, err := ParseToken(token.String()); err != nil || got != token {
		t.Fatalf("%v, %v", got, err)
	}
	for _, bad := range []string{"", "0", "-1", "4095", "1e9", " 8192", "9223372036854775808", "0x10000"} {
		if got, err := ParseToken(bad); err == nil || Kind(err) != Definite {
			t.Errorf("ParseToken(%q) = %d, %v", bad, got, err)
		}
	}
}

func TestCounterAt(t *testing.T) {
	if got := CounterAt(time.UnixMicro(EpochUnixMicro + 5)); got != 5 {
		t.Fatalf("5 µs after the epoch: %d", got)
	}
	if got := CounterAt(time.Unix(0, 0)); got != 1 {
		t.Fatalf("before the epoch: %d", got)
	}
	if year := time.UnixMicro(EpochUnixMicro + MaxCounter).Year(); year < 2091 {
		t.Fatalf("counters end in %d", year)
	}
}
