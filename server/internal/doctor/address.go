package doctor

import (
	"cmp"
	"crypto/tls"
	"net/url"
	"strings"

	"github.com/interlock-dev/interlock/server/internal/backend"
)

// address is a URL that [backend.Parse] has accepted, in parts.
type address struct {
	scheme string
	hosts  []string
	path   string // with its slash
	user   *url.Userinfo
	query  url.Values  // the client's options
	own    url.Values  // ours
	tls    *tls.Config // of etcd and ZooKeeper; nil is without TLS
}

// addressOf takes what is public from the target and the rest from its text.
func addressOf(t backend.Target, raw string) address {
	scheme, rest, _ := strings.Cut(t.Public(), "://")
	hosts, _, _ := strings.Cut(strings.SplitN(rest, "?", 2)[0], "/")
	a := address{scheme: scheme, hosts: strings.FieldsFunc(hosts, func(r rune) bool { return r == ',' })}
	_, own, _ := strings.Cut(t.Public(), "?")
	a.own, _ = url.ParseQuery(own) // it was made by Encode
	_, rest, _ = strings.Cut(raw, "://")
	head, tail := rest, ""
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		head, tail = rest[:i], rest[i:]
	}
	account := ""
	if i := strings.LastIndexByte(head, '@'); i >= 0 {
		account = head[:i+1]
	}
	u, err := url.Parse(scheme + "://" + account + "host" + tail)
	if err != nil {
		return a // Parse has accepted it
	}
	a.user, a.path, a.query = u.User, strings.TrimSuffix(u.Path, "/"), u.Query()
	for name := range a.own {
		a.query.Del(name)
	}
	return a
}

// client is the URL as the backend's own client wants it; pgx does not take a plus
// for a space.
func (a address) client() string {
	query := strings.ReplaceAll(a.query.Encode(), "+", "%20")
	u := url.URL{Scheme: a.scheme, User: a.user, Host: strings.Join(a.hosts, ","), Path: a.path, RawQuery: query}
	return u.String()
}

// account is user and password; empty if there is none.
func (a address) account() (user, password string) {
	if a.user == nil {
		return "", ""
	}
	password, _ = a.user.Password()
	return a.user.Username(), password
}

// namespace begins the names of tables.
func (a address) namespace() string { return cmp.Or(a.own.Get("namespace"), "interlock") }
