package kube

import (
	"strconv"
	"testing"

	"k8s.io/api/coordination/v1"
)

func FuzzObjectName(f *testing.F) {
	for _, s := range []string{"p-nightly", "p-x-2f", "p-", "p-x-", "p-x-zz"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, object string) {
		l := layout{prefix: "p-"}
		if name, ok := l.name(object); ok {
			if back, _ := l.object(name); back != object {
				t.Fatalf("%q is %q, which is %q", object, name, back)
			}
		}
	})
}

func FuzzLease(f *testing.F) {
	f.Add("1", "holder", "holder", "7", "890229109301653504", int32(30))
	f.Add("01", "a", "b", "-1", "x", int32(-1))
	f.Fuzz(func(t *testing.T, revision, holder, ours, base, token string, seconds int32) {
		l := &v1.Lease{}
		l.ResourceVersion, l.Spec.HolderIdentity, l.Spec.LeaseDurationSeconds = revision, &holder, &seconds
		l.Annotations = map[string]string{holderKey: ours, baseKey: base, tokenKey: token}
		if token, ok := TokenOf(l); ok != token.Valid() {
			t.Fatalf("%d, %v", token, ok)
		}
		o, err := newObject(l)
		if err == nil && (o.duration(1) <= 0 || strconv.FormatInt(o.rev, 10) != revision) {
			t.Fatalf("%q is the revision %d, held for %v", revision, o.rev, o.duration(1))
		}
		if n, err := o.base(); err == nil && base != "" && strconv.FormatInt(n, 10) != base {
			t.Fatalf("%q is the base %d", base, n)
		}
	})
}
