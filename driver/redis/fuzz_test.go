package redis

import (
	"testing"

	"github.com/interlock-dev/interlock/driver"
)

func FuzzMember(f *testing.F) {
	for _, s := range []string{"1:a/1:b/1:c/", "0:/0:/0:/", "9:a/", "-1:a/", "99999999999999999999:a/", ":", "01:a/1:b/1:c/", "1:a/1:b/1:cx", "1:a/1:b/1:c/x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, m string) {
		id, err := parseMember(m)
		if err != nil {
			return
		}
		if back := member(id); back != m {
			t.Fatalf("%q is %+v, which is %q", m, id, back)
		}
	})
}

func FuzzIdempotencyRecord(f *testing.F) {
	f.Add("o", "1", "2", "3", "4")
	f.Add("", "9223372036854775807", "-9223372036854775808", "x", "")
	f.Fuzz(func(t *testing.T, owner, attempt, until, created, now string) {
		if r, err := parseRecord(owner, attempt, until, created, now); err == nil && r.Owner != owner {
			t.Fatalf("%+v", r)
		}
	})
}

func FuzzMark(f *testing.F) {
	f.Add("1", "a", "2")
	f.Add("x", "", "-1")
	f.Add("+1", "", "01")
	f.Fuzz(func(t *testing.T, token, source, raised string) {
		if m, err := parseMark(request{op: "show mark"}, token, source, raised); err == nil && (m.Source != source || m.Token < 0 || m.Token.String() != token) {
			t.Fatalf("%q is %+v", token, m)
		}
	})
}

func FuzzVersioned(f *testing.F) {
	f.Add("0000000000000000001", "", "0", "1", "data")
	f.Add("", "", "", "", "")
	f.Add("1", "x", "2", "3", "")
	f.Fuzz(func(t *testing.T, version, tie, deleted, terminal, data string) {
		v, err := parseVersioned(request{op: "read"}, []string{version, tie, deleted, terminal, data})
		if err == nil && v.Stamp.Version != 0 && driver.FormatPadded(v.Stamp.Version) != version {
			t.Fatalf("%q is the version %d", version, v.Stamp.Version)
		}
	})
}

func FuzzInfo(f *testing.F) {
	f.Add("redis_version:7.0.0\r\nrole:master\r\nuptime_in_seconds:9223372036854775807\r\nmaxmemory:1\r\nmaxmemory_policy:allkeys-lru")
	f.Add("redis_version:x\n:\nrole")
	f.Fuzz(func(_ *testing.T, text string) { _ = parseInfo(text).refusal(Settings{}) })
}

func FuzzBroken(f *testing.F) {
	f.Add("1", "2")
	f.Add("9223372036854775807", "x")
	f.Fuzz(func(t *testing.T, counter, at string) {
		if b, err := parseBroken(driver.Break{Name: "n"}, counter, at); err == nil && b.Token != 0 && !b.Token.Valid() {
			t.Fatalf("%+v", b)
		}
	})
}
