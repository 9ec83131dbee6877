package backend

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	for _, c := range []struct {
		give, kind, public string
		endpoints          []string
	}{
		{"etcd://127.0.0.1:7460", "etcd", "etcd://127.0.0.1:7460", []string{"127.0.0.1:7460"}},
		{"etcd://a,b:1,[::1]:2", "etcd", "etcd://a:2379,b:1,[::1]:2", []string{"a:2379", "b:1", "[::1]:2"}},
		{"etcd://root:s3cret@a:1,b:2", "etcd", "etcd://a:1,b:2", []string{"a:1", "b:2"}},
		{"redis://localhost", "redis", "redis://localhost:6379", []string{"localhost:6379"}},
		{"rediss://:s3cret@h:1/2?client_cert=s3cret", "redis", "rediss://h:1/2", []string{"h:1"}},
		{"postgres://u:s3cret@h/db?sslmode=disable&password=s3cret", "postgres", "postgres://h:5432/db", []string{"h:5432"}},
	} {
		got, err := Parse(c.give)
		if err != nil || got.Kind() != c.kind || got.Public() != c.public || !slices.Equal(got.endpoints, c.endpoints) {
			t.Errorf("%s: %s, %s, %v, %v", c.give, got.Kind(), got.Public(), got.endpoints, err)
		}
		if text := fmt.Sprintf("%v %+v %#v %s", got, got, got, got); strings.Contains(text, "s3cret") {
			t.Errorf("%s is printed with its password: %s", c.give, text)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for give, want := range map[string]string{
		"":                           "not a URL",
		"localhost:2379":             "not a URL",
		"consul://h:1":               `no backend is called "consul"; known are etcd://`,
		"etcd://":                    "does not name a host",
		"etcd://a,,b":                "does not name a host",
		"etcd://a:1/some/path":       "--prefix",
		"redis://a:1,b:2":            "names one host:port",
		"etcd://:s3cret@:1":          "not of the form host:port",
		"redis://u:s3cret%zz@h:1":    "must be escaped",
		"redis://u:s3cr et@h:1/\x7f": "must be escaped",
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
