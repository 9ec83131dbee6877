package etcd

import (
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"
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
	for _, s := range []string{"", "0", "-1", "9223372036854775808", "1e3"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if n, err := readAmount(text); err == nil && n < 0 {
			t.Fatalf("%q is %d", text, n)
		}
	})
}
