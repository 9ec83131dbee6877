package zookeeper

import (
	"testing"

	"github.com/go-zookeeper/zk"
)

func FuzzNode(f *testing.F) {
	for _, s := range []string{"_c_9f1c2d3e-0000-4abc-8def-0123456789ab-lock-0000000001", "0123456789abcdef0123456789abcdef__lock__-2147483648", "x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if n, ok := readNode(name); ok && (n.name != name || n.id == "") {
			t.Fatalf("%q is %+v", name, n)
		}
		_ = queueOf([]string{name, "_c_9f1c2d3e-0000-4abc-8def-0123456789ab-lock-0000000001", name + "1"})
	})
}

func FuzzSegment(f *testing.F) {
	for _, s := range []string{"a", "a%2Fb", "%", "%2", "%zz", "%2f", "..", "\xff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		l := layout{root: "/r"}
		if name, ok := l.name("/r/" + s); ok && escape(name) != s {
			t.Fatalf("%q is %q, escaped %q", s, name, escape(name))
		}
		if name, ok := l.name(l.lock(s)); s != "" && (!ok || name != s) {
			t.Fatalf("%q comes back as %q, %v", s, name, ok)
		}
	})
}

func FuzzContenderRecord(f *testing.F) {
	for _, s := range []string{`{"owner":"a","asked":"2026-01-02T03:04:05Z","ttl_ms":1}`, `{"owner":7}`, `{`, ``} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r, ok := readRecord(data)
		if !ok {
			return
		}
		if again, ok := readRecord(encode(r)); !ok || again.Owner != r.Owner || !again.Asked.Equal(r.Asked) {
			t.Fatalf("%q is %+v, and written again %+v", data, r, again)
		}
	})
}

func FuzzBase(f *testing.F) {
	for _, s := range []string{`{"base":1}`, `{"base":-1}`, `{"base":9223372036854775807}`, ``, `{"earlier":[{}]}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		b, err := readBase(data, &zk.Stat{Mzxid: 7})
		if err == nil && len(data) > 0 && b.Base < 1 {
			t.Fatalf("%q is the base %+v", data, b)
		}
	})
}
