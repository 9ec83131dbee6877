package backend

import (
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// A URL names a backend. It prints without user, password and options of the client.
type URL struct {
	scheme   *Scheme
	written  string     // the scheme as it was written
	raw      string     // without our settings
	hosts    []string   // host:port, or the namespace
	path     string     // with its first slash, without its last
	fragment bool       // something stood after #
	query    url.Values // options of the client
	settings url.Values // those of the driver
	user     *url.Userinfo
}

// A URLError tells why a URL cannot be used. It never holds the URL, which may carry a
// password.
type URLError struct{ Reason string }

// Error is one sentence.
func (e *URLError) Error() string { return e.Reason }

// Parse reads a URL: scheme://[user:password@]host[:port][,host…][/path][?name=value…]. What
// of that a backend takes is up to its [Scheme]. It connects to nothing. Errors are
// [*URLError].
func Parse(raw string) (*URL, error) {
	name, rest, ok := strings.Cut(raw, "://")
	s := schemeOf(name)
	if !ok || s == nil {
		return nil, unknown(name, ok)
	}
	hosts, tail := rest, ""
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		hosts, tail = rest[:i], rest[i:]
	}
	// net/url accepts no list of hosts, so the list is read separately.
	account := ""
	if i := strings.LastIndexByte(hosts, '@'); i >= 0 {
		account, hosts = hosts[:i+1], hosts[i+1:]
	}
	parsed, err := url.Parse(name + "://" + account + "host" + tail)
	// An @ after the hosts means that part of a password was taken for a path. The names of
	// contexts in Kubernetes contain one.
	if err != nil || account == "" && s.Port != "" && strings.Contains(tail, "@") {
		return nil, &URLError{"the " + s.Kind + " URL has a user name, a password or a path that must be escaped with %"}
	}
	u := &URL{scheme: s, written: name, user: parsed.User, path: strings.TrimRight(parsed.Path, "/"), fragment: parsed.Fragment != ""}
	if u.hosts, err = s.hosts(hosts); err != nil {
		return nil, err
	}
	if err := u.divide(parsed); err != nil {
		return nil, err
	}
	parsed.Host, parsed.Path, parsed.RawPath = strings.Join(u.hosts, ","), u.path, strings.TrimRight(parsed.RawPath, "/")
	u.raw = parsed.String()
	return u, u.check()
}

// check refuses what would otherwise be ignored.
func (u *URL) check() error {
	switch {
	case !u.scheme.Several && len(u.hosts) > 1:
		return &URLError{"a " + u.Kind() + " URL names one host:port, not several"}
	case u.fragment:
		return &URLError{article(u.Kind()) + " URL has nothing after #; in a user name or a password # is written %23"}
	}
	if err := u.checkOptions(); err != nil || u.scheme.Check == nil {
		return err
	}
	return u.scheme.Check(u)
}

// hosts reads a list of addresses. Errors do not repeat an address: it may be part of a
// password that was not escaped.
func (s *Scheme) hosts(text string) (list []string, err error) {
	if s.Port == "" {
		if text == "" {
			return nil, nil
		}
		return []string{text}, nil
	}
	for _, h := range strings.Split(text, ",") {
		if h == "" {
			return nil, &URLError{"the " + s.Kind + " URL does not name a host"}
		}
		host, port, err := net.SplitHostPort(h)
		if err != nil {
			host, port = h, s.Port
			if inner, ok := strings.CutPrefix(h, "["); ok && strings.HasSuffix(inner, "]") {
				host = strings.TrimSuffix(inner, "]")
			}
		}
		if !isHost(host) {
			return nil, &URLError{"an address in the " + s.Kind + " URL is not of the form host:port"}
		}
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return nil, &URLError{"the port in the " + s.Kind + " URL is not a number from 1 to 65535"}
		}
		list = append(list, net.JoinHostPort(host, port))
	}
	return list, nil
}

// Has reports, without connecting, whether the backend has one of the abilities.
func (u *URL) Has(any Ability) bool { return u.scheme.Abilities&any != 0 }

// CheckFenced refuses, without connecting, a URL whose locks have no tokens: they can be
// shown, and not acquired by [Backend.Fenced]. Errors are [*URLError].
func (u *URL) CheckFenced() error {
	if u.scheme.CheckFenced == nil {
		return nil
	}
	return u.scheme.CheckFenced(u)
}

// isHost accepts IP addresses and what a DNS name consists of.
func isHost(s string) bool {
	return s != "" && (net.ParseIP(s) != nil || !strings.ContainsFunc(s, func(r rune) bool {
		return !(r == '-' || r == '.' || r == '_' || '0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z')
	}))
}

// Kind is the [Scheme.Kind].
func (u *URL) Kind() string { return u.scheme.Kind }

// Hosts are the addresses, each host:port; none for a kind without hosts.
func (u *URL) Hosts() []string {
	if u.scheme.Port == "" {
		return nil
	}
	return slices.Clone(u.hosts)
}

// Namespace is what stands in the place of the hosts of a kind without hosts.
func (u *URL) Namespace() string {
	if u.scheme.Port != "" || len(u.hosts) == 0 {
		return ""
	}
	return u.hosts[0]
}

// Path begins with a slash, and ends without one; empty if there is none.
func (u *URL) Path() string { return u.path }

// User is the account; nil if there is none.
func (u *URL) User() *url.Userinfo { return u.user }

// Client is the URL for the backend's client, with secrets and without settings of ours.
func (u *URL) Client() string { return u.raw }

// Query has the options of the client.
func (u *URL) Query() url.Values { return u.query }

// Setting is the value of one of [Scheme.Settings]; empty if it is not given.
func (u *URL) Setting(name string) string { return u.settings.Get(name) }

// Public is the URL without user, password and options of the client: fit for logs, and
// for a command that only has to know where the backend is.
func (u *URL) Public() string {
	path := (&url.URL{Path: u.path}).EscapedPath()
	path = strings.ReplaceAll(path, "@", "%40") // Parse takes another for part of a password
	public := u.written + "://" + strings.Join(u.hosts, ",") + path
	if len(u.settings) > 0 {
		public += "?" + u.settings.Encode()
	}
	return public
}

// String is [URL.Public], so that printing a URL shows no secret.
func (u *URL) String() string { return u.Public() }

// GoString is [URL.Public] as well.
func (u *URL) GoString() string { return u.Public() }

func article(kind string) string {
	if strings.ContainsAny(kind[:1], "aeiou") {
		return "an " + kind
	}
	return "a " + kind
}
