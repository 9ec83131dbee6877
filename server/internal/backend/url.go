// Package backend opens a lock service or a guard from a URL. It promises
// nothing beyond what the driver behind the URL promises, and never shows a
// password: what it prints is [Target.Public].
//
//	target, err := backend.Parse("redis://:secret@127.0.0.1:6379/1")
//	locks, err := target.Locks(ctx, backend.Options{TTL: 30 * time.Second})
//	...
//	err = locks.Close(ctx)
package backend

import (
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// Target is a backend that was named but not yet reached.
type Target struct {
	kind      string     // etcd, kube, mysql, postgres, redis or zookeeper
	raw       string     // the URL, with secrets and without own
	scheme    string     // as it was given
	endpoints []string   // host:port; for kube the namespace, if one was given
	path      string     // with its slash
	query     url.Values // the client's options
	own       url.Values // ours
	mode      string     // of own
	user      *url.Userinfo
}

// schemes are the known ones and what is behind them.
var schemes = map[string]string{
	"etcd": "etcd", "redis": "redis", "rediss": "redis", "postgres": "postgres", "postgresql": "postgres",
	"mysql": "mysql", "mariadb": "mysql", "zookeeper": "zookeeper", "kube": "kube",
}

// A URLError says why a backend URL cannot be used. It never holds the URL,
// which may carry a password.
type URLError struct{ Reason string }

// Error is one sentence.
func (e *URLError) Error() string { return e.Reason }

// Parse reads a URL: etcd://host:port[,host:port…], redis://host:port[/number],
// rediss:// for TLS, postgres://host:port/database, mysql:// or mariadb:// like
// it, zookeeper://host:port[,host:port…][/root] or kube://[namespace], each with
// user:password@ before the host where one is needed, and with options of the
// client and of ours (?name=value). It reaches nothing. Errors are [*URLError].
func Parse(raw string) (Target, error) {
	scheme, rest, ok := strings.Cut(raw, "://")
	kind := schemes[scheme]
	if !ok || kind == "" {
		return Target{}, unknown(scheme, ok)
	}
	hosts, tail := rest, ""
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		hosts, tail = rest[:i], rest[i:]
	}
	t := Target{kind: kind, scheme: scheme}
	// The host list is not a host that net/url accepts, so it is read apart.
	account := ""
	if i := strings.LastIndexByte(hosts, '@'); i >= 0 {
		account, hosts = hosts[:i+1], hosts[i+1:]
	}
	u, err := url.Parse(scheme + "://" + account + "host" + tail)
	// An @ behind the hosts: part of a password was taken for a path. Names of
	// Kubernetes' contexts have one.
	if err != nil || account == "" && kind != "kube" && strings.Contains(tail, "@") {
		return Target{}, &URLError{"the " + kind + " URL has a user name, a password or a path that must be escaped with %"}
	}
	t.user, t.path = u.User, strings.TrimSuffix(u.Path, "/")
	if t.endpoints, err = endpoints(kind, hosts); err != nil {
		return Target{}, err
	}
	if err := t.divide(u); err != nil {
		return Target{}, err
	}
	u.Host, u.Path, u.RawPath = strings.Join(t.endpoints, ","), t.path, strings.TrimSuffix(u.RawPath, "/")
	t.raw = u.String()
	return t, t.check(u)
}

func unknown(scheme string, ok bool) error {
	const known = "known are etcd://host:port[,host:port…], redis://host:port, postgres://host:port/database, " +
		"mysql://host:port/database, zookeeper://host:port[,host:port…]/root and kube://namespace"
	if !ok {
		return &URLError{"the backend is not a URL; " + known}
	}
	return &URLError{fmt.Sprintf("no backend is called %q; %s", scheme, known)}
}

// check refuses what would otherwise be ignored without a word.
func (t Target) check(u *url.URL) error {
	switch {
	case !kinds[t.kind].several && len(t.endpoints) > 1:
		return &URLError{"a " + t.kind + " URL names one host:port, not several"}
	case t.kind == "etcd" && (t.path != "" || u.Fragment != ""):
		return &URLError{"an etcd URL has no path after the addresses; use --prefix for a part of the key space"}
	case u.Fragment != "":
		return &URLError{"a " + t.kind + " URL has nothing after #; in a user name or a password # is written %23"}
	case t.kind == "redis" && !isDatabase(t.path):
		return &URLError{"a redis URL ends with the number of a database, 0 or more, as in redis://host:6379/1, or with nothing"}
	case t.kind == "kube" && (t.path != "" || t.user != nil):
		return &URLError{"a kube URL is kube://namespace; who you are and where the cluster is says the kubeconfig (?kubeconfig=FILE, ?context=NAME)"}
	case t.kind == "mysql" && strings.Count(t.path, "/") != 1:
		return &URLError{"a mysql URL ends with the name of a database, as in mysql://user@host:3306/database"}
	}
	return t.checkOptions()
}

// isDatabase knows no upper bound: how many there are is up to the server.
func isDatabase(path string) bool {
	if path == "" {
		return true
	}
	_, err := strconv.ParseUint(strings.TrimPrefix(path, "/"), 10, 31)
	return err == nil
}

// endpoints reads a list of addresses. What is wrong with one is told without
// it: it may be part of a password that was not escaped.
func endpoints(kind, hosts string) ([]string, error) {
	if kind == "kube" {
		return namespace(hosts)
	}
	var list []string
	for _, h := range strings.Split(hosts, ",") {
		if h == "" {
			return nil, &URLError{"the " + kind + " URL does not name a host"}
		}
		host, port, err := net.SplitHostPort(h)
		if err != nil {
			host, port = h, kinds[kind].port
			if inner, ok := strings.CutPrefix(h, "["); ok && strings.HasSuffix(inner, "]") {
				host = strings.TrimSuffix(inner, "]")
			}
		}
		if !isHost(host) {
			return nil, &URLError{"an address in the " + kind + " URL is not of the form host:port"}
		}
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return nil, &URLError{"the port in the " + kind + " URL is not a number from 1 to 65535"}
		}
		list = append(list, net.JoinHostPort(host, port))
	}
	return list, nil
}

// isHost accepts IP addresses and what a DNS name consists of.
func isHost(s string) bool {
	return s != "" && (net.ParseIP(s) != nil || !strings.ContainsFunc(s, func(r rune) bool {
		return !(r == '-' || r == '.' || r == '_' || '0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z')
	}))
}

// namespace reads what stands in the place of a kube URL's host.
func namespace(text string) ([]string, error) {
	if text == "" {
		return nil, nil
	}
	if len(validation.IsDNS1123Label(text)) > 0 {
		return nil, &URLError{"the namespace in the kube URL is not one: it has lower-case letters, digits and -"}
	}
	return []string{text}, nil
}

// Kind is etcd, kube, mysql, postgres, redis or zookeeper.
func (t Target) Kind() string { return t.kind }

// Public is the URL without user, password and options of the client: fit for
// logs, and for a command that only wants to know where it is.
func (t Target) Public() string {
	path := (&url.URL{Path: t.path}).EscapedPath()
	path = strings.ReplaceAll(path, "@", "%40") // Parse takes another for part of a password
	public := t.scheme + "://" + strings.Join(t.endpoints, ",") + path
	if len(t.own) > 0 {
		public += "?" + t.own.Encode()
	}
	return public
}

// String is [Target.Public], so that printing a Target shows no secret.
func (t Target) String() string { return t.Public() }

// GoString is [Target.Public] as well.
func (t Target) GoString() string { return t.Public() }
