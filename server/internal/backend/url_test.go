package backend

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/internal/testbed"
)

func TestParse(t *testing.T) {
	for _, c := range []struct {
		give, kind, public string
		endpoints          []string
	}{
		{"etcd://127.0.0.1:7460", "etcd", "etcd://127.0.0.1:7460", []string{"127.0.0.1:7460"}},
		{"etcd://a,b:1,[::1]:2", "etcd", "etcd://a:2379,b:1,[::1]:2", []string{"a:2379", "b:1", "[::1]:2"}},
		{"etcd://root:s3cret@a:1,b:2", "etcd", "etcd://a:1,b:2", []string{"a:1", "b:2"}},
		{"Redis://localhost", "redis", "redis://localhost:6379", []string{"localhost:6379"}},
		{"redis://localhost", "redis", "redis://localhost:6379", []string{"localhost:6379"}},
		{"rediss://:s3cret@h:1/2?client_name=s3cret", "redis", "rediss://h:1/2", []string{"h:1"}},
		{"redis://h:1/?dial_timeout=1s", "redis", "redis://h:1", []string{"h:1"}},
		{"redis://h:65535/4711/", "redis", "redis://h:65535/4711", []string{"h:65535"}},
		{"postgresql://h?TimeZone=UTC&options=-c%20work_mem%3D8MB", "postgres", "postgresql://h:5432", []string{"h:5432"}},
		{"postgres://u:s3cret@h/db?sslmode=disable&password=s3cret", "postgres", "postgres://h:5432/db", []string{"h:5432"}},
		{"postgres://h/db?mode=table&password=s3cret&namespace=n", "postgres", "postgres://h:5432/db?mode=table&namespace=n", []string{"h:5432"}},
		{"redis://:s3cret@h?mode=plain&client_name=s3cret", "redis", "redis://h:6379?mode=plain", []string{"h:6379"}},
		{"mysql://u:s3cret@h/db?timeout=1s", "mysql", "mysql://h:3306/db", []string{"h:3306"}},
		{"mariadb://u@h:1/db?mode=session", "mysql", "mariadb://h:1/db?mode=session", []string{"h:1"}},
		{"zookeeper://u:s3cret@a,b:1/x/y?names=raw", "zookeeper", "zookeeper://a:2181,b:1/x/y?names=raw", []string{"a:2181", "b:1"}},
		{"redis://h?ttl=5s&prefix=app/", "redis", "redis://h:6379?prefix=app%2F&ttl=5s", []string{"h:6379"}},
		{"consul://h?token=s3cret&prefix=app/&lock_delay=15s", "consul", "consul://h:8500?lock_delay=15s&prefix=app%2F", []string{"h:8500"}},
		{"kube://", "kube", "kube://", nil},
		{"kube://jobs?context=admin@c", "kube", "kube://jobs?context=admin%40c", []string{"jobs"}},
	} {
		got, err := Parse(c.give)
		if err != nil {
			t.Errorf("%s: %v", c.give, err)
			continue
		}
		hosts := got.Hosts()
		if n := got.Namespace(); n != "" {
			hosts = append(hosts, n)
		}
		if got.Kind() != c.kind || got.Public() != c.public || !slices.Equal(hosts, c.endpoints) {
			t.Errorf("%s: %s, %s, %v", c.give, got.Kind(), got.Public(), hosts)
		}
		if text := fmt.Sprintf("%v %+v %#v %s", got, got, got, got); strings.Contains(text, "s3cret") {
			t.Errorf("%s is printed with its password: %s", c.give, text)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for give, want := range map[string]string{
		"":                              "not a URL",
		"localhost:2379":                "not a URL",
		"etcd://0[0":                    "not of the form host:port",
		"redis://h?ttl=5":               `the option "ttl" of the redis URL is a duration`,
		"redis://h?ttl=1ms":             "redis grants leases of 100ms to 24h0m0s",
		"memory://x":                    `no driver for memory:// is part of this program: import _ "github.com/interlock-dev/interlock/driver/memory"`,
		"riak://h:1":                    `no backend is called "riak"; known are consul://`,
		"etcd://":                       "does not name a host",
		"etcd://a,,b":                   "does not name a host",
		"etcd://a:1/some/path":          "--prefix",
		"redis://a:1,b:2":               "names one host:port; further ones of a cluster or of sentinels are options: redis://a:6379?cluster=true&addr=b:6379",
		"etcd://:s3cret@:1":             "not of the form host:port",
		"etcd://a:1/?x=1":               `an etcd URL has no option "x"; known are tls, tls_ca, tls_cert, tls_key`,
		"etcd://a:1?tls=s3cret":         "the option tls of an etcd URL has the value true",
		"zookeeper://a:1?tls_cert=x":    "given together",
		"consul://a/b":                  "use ?prefix= or --prefix",
		"consul://a,b":                  "names one host:port",
		"consul://a?lock_delay=2m":      "lock_delay is a duration",
		"etcd://a:port":                 "the port in the etcd URL is not a number from 1 to 65535",
		"etcd://a:1,b:0":                "from 1 to 65535",
		"redis://a:65536":               "the port in the redis URL is not a number",
		"redis://a:-1":                  "from 1 to 65535",
		"postgres://a:x/db":             "the port in the postgres URL",
		"etcd://a]":                     "not of the form host:port",
		"etcd://[::1":                   "not of the form host:port",
		"etcd://[a b]:1":                "not of the form host:port",
		"redis://a\"b:1":                "not of the form host:port",
		"etcd://a:1:2":                  "not of the form host:port",
		"redis://a:1/x":                 "the number of a database, 0 or more",
		"redis://a:1/-1":                "the number of a database, 0 or more",
		"redis://a:1/1/2":               "the number of a database, 0 or more",
		"redis://a:1/1?nonsense=s3cret": `a redis URL has no option "nonsense"; known are addr,`,
		"redis://a:1?db=1":              "the number of a database is the path",
		"redis://a:1?dial_timeout=x":    "dial timeout",
		"redis://a:1?Dial_Timeout=1s":   `no option "Dial_Timeout"`,
		"redis://a:1?%zz":               "the options of the redis URL cannot be read",
		"redis://a:1/1#x":               "nothing after #",
		"postgres://a/db?nonsense=1":    `a postgres URL has no option "nonsense"; known are DateStyle,`,
		"postgres://a/db?mode=s3cret":   `the option "mode" of the postgres URL is given once, as session or table`,
		"redis://a?mode=":               `the option "mode" of the redis URL is given once, as fenced or plain`,
		"mysql://a/db?mode=table&mode=": "is given once",
		"kube://a?context=":             "is given once, with a value",
		"mysql://a":                     "ends with the name of a database",
		"mysql://a/b/c":                 "ends with the name of a database",
		"mysql://a,b/c":                 "names one host:port",
		"mysql://a/b?password=s3cret":   `a mysql URL has no option "password"; known are allowCleartextPasswords,`,
		"zookeeper://a?mode=x":          `has no option "mode"; known are tls, tls_ca, tls_cert, tls_key, names`,
		"consul://a?x=1":                `, ttl; the ACL token is ?token=,`,
		"kube://a,b":                    "the namespace in the kube URL is not one",
		"kube://a:1":                    "the namespace in the kube URL is not one",
		"kube://u:s3cret@a":             "the kubeconfig has the user",
		"kube://a/b":                    "the kubeconfig has the user",
		"redis://u:s3cret?x@h:1":        "must be escaped",
		"redis://u:s3cret/x@h:1":        "must be escaped",
		"redis://u:s3cret%zz@h:1":       "must be escaped",
		"redis://u:s3cr et@h:1/\x7f":    "must be escaped",
	} {
		_, err := Parse(give)
		var bad *URLError
		if !errors.As(err, &bad) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", give, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "s3cr") {
			t.Errorf("%q: the error shows the password: %v", give, err)
		}
	}
}

// TestClient requires the secrets and options in the client's URL, and no settings.
func TestClient(t *testing.T) {
	for raw, want := range map[string]string{
		"redis://:p%40ss@h:1/2?mode=plain":              "redis://:p%40ss@h:1/2",
		"postgres://u:s@h/d?mode=table&sslmode=disable": "postgres://u:s@h:5432/d?sslmode=disable",
		"etcd://u:s@a:1,b":                              "etcd://u:s@a:1,b:2379",
		"zookeeper://a,b:1/root?names=raw":              "zookeeper://a:2181,b:1/root",
		"mysql://u@h/d?namespace=n&timeout=1s&ttl=5s":   "mysql://u@h:3306/d?timeout=1s",
	} {
		if got, err := Parse(raw); err != nil || got.Client() != want {
			t.Errorf("%s: %s, %v; want %s", raw, got.Client(), err, want)
		}
	}
}

// TestCheckTTL requires that invalid TTLs are rejected before any connection.
func TestCheckTTL(t *testing.T) {
	for _, c := range []struct {
		url string
		ttl time.Duration
		why string
	}{
		{"etcd://h", 1500 * time.Millisecond, "etcd grants leases in whole seconds; 2s would do"},
		{"etcd://h", time.Millisecond, "etcd grants leases of 1s to 24h0m0s, in whole seconds"},
		{"kube://", 2 * time.Second, "kube grants leases of 3s to 24h0m0s, in whole seconds"},
		{"kube://", 3500 * time.Millisecond, "kube grants leases in whole seconds; 4s would do"},
		{"redis://h", 99 * time.Millisecond, "redis grants leases of 100ms to 24h0m0s"},
		{"mysql://h/d", 999 * time.Millisecond, "mysql grants leases of 1s to 24h0m0s"},
		{"postgres://h", 25 * time.Hour, "postgres grants leases of 1s to 24h0m0s"},
		{"zookeeper://h", 499 * time.Millisecond, "zookeeper grants leases of 500ms to 24h0m0s"},
		{"consul://h", 25 * time.Hour, "consul grants leases of 1s to 24h0m0s"},
		{"zookeeper://h", 500 * time.Millisecond, ""}, {"postgres://h", time.Second, ""}, {"kube://", 24 * time.Hour, ""},
		{"mysql://h/d", 0, ""}, {"redis://h", 100 * time.Millisecond, ""}, {"etcd://h", 2 * time.Second, ""},
	} {
		target, err := Parse(c.url)
		testbed.OK(t, err)
		err = target.CheckTTL(c.ttl)
		var bad *TTLError
		if c.why == "" && err != nil || c.why != "" && (!errors.As(err, &bad) || err.Error() != c.why) {
			t.Errorf("%s, %v: %v, want %q", c.url, c.ttl, err, c.why)
		}
	}
}

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
