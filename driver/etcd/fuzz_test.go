package etcd

import (
	"strconv"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/interlock-dev/interlock/driver"
)

func FuzzContender(f *testing.F) {
	for _, s := range []string{`{"owner":"a","base":1,"asked":"2026-01-02T03:04:05Z"}`, `{"owner":1}`, ``, `{`} {
		f.Add([]byte("k"), []byte(s), int64(7))
	}
	f.Fuzz(func(t *testing.T, key, value []byte, lease int64) {
		if p := placeOf(&mvccpb.KeyValue{Key: key, Value: value, Lease: lease}); p.owner == "" {
			t.Fatalf("%q has no owner", value)
		}
	})
}

func FuzzBranchMarker(f *testing.F) {
	for _, s := range []string{`{"at":1}`, `{}`, ``, `{"at":"x"}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, value []byte) {
		if e, err := readEnded(&mvccpb.KeyValue{Key: []byte("k"), Value: value}); err == nil && e.At == 0 {
			t.Fatalf("%q is %+v", value, e)
		}
	})
}

func FuzzAmount(f *testing.F) {
	for _, s := range []string{"", "0", "-1", "+1", "01", "9223372036854775808", "1e3"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if n, err := readAmount(text); err == nil && len(text) > 0 && (n < 0 || strconv.FormatInt(n, 10) != string(text)) {
			t.Fatalf("%q is %d", text, n)
		}
	})
}

// Values that etcd compares as text have one spelling.
func FuzzCompared(f *testing.F) {
	for _, s := range []string{"00000000000000000007 {}\n", "0000000000000000007 {}\ndata", "10000000000000000007tie\x00-data", "+000000000000000007 {}\n", "0+000000000000000007\x00+"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		kv := &mvccpb.KeyValue{Key: []byte("k"), Value: text}
		if m, err := readMark(kv); err == nil && !strings.HasPrefix(string(text), driver.FormatPadded(int64(m.Token))) {
			t.Fatalf("%q is the mark %+v", text, m)
		}
		if v, err := readValue(kv); err == nil && !strings.HasPrefix(string(text), driver.FormatPadded(int64(v.Token))) {
			t.Fatalf("%q is the value %+v", text, v)
		}
		if v, err := readState(kv); err == nil && stateText(v) != string(text) {
			t.Fatalf("%q is the state %+v, which is %q", text, v, stateText(v))
		}
	})
}
