package backend

import (
	"strings"
	"testing"
)

func FuzzURL(f *testing.F) {
	for _, s := range []string{"etcd://a:1,b", "redis://:s3cret@h/1", "postgres://u:s3cret@h:5/d?mode=table", "mysql://h/d", "zookeeper://h/r", "kube://?context=x", "x", "redis://h/%zz", "postgres://@h/@", "etcd://0[0", "etcd://[::1]"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		target, err := Parse(raw)
		if err != nil {
			return
		}
		_ = target.CheckTTL(0)
		if strings.Contains(raw, ":s3cret@") && strings.Contains(target.Public()+target.String(), "s3cret@") {
			t.Fatalf("%q is printed as %q", raw, target)
		}
		if again, err := Parse(target.Public()); err != nil || again.Public() != target.Public() {
			t.Fatalf("%q is public as %q, which is %v: %v", raw, target.Public(), again, err)
		}
	})
}
