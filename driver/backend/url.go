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
	written  string     // the scheme in the given URL
	raw      string     // without the driver's settings
	hosts    []string   // host:port, or the namespace
	path     string     // with its first slash, without its last
	fragment bool       // text came after #
	query    url.Values // options of the client
	settings url.Values // settings of the driver
	user     *url.Userinfo
}

// A URLError is the reason why a URL cannot be used. It never contains the URL, which may
// have a password.
type URLError struct{ Reason string }

// Error returns one sentence.
func (e *URLError) Error() string { return e.Reason }

// Parse parses a URL: scheme://[user:password@]host[:port][,host…][/path][?name=value…]. The
// [Scheme] of a backend restricts that further. It does not connect. Errors are [*URLError].
func Parse(raw string) (*URL, error) {
	name, rest, ok := strings.Cut(raw, "://")
	name = strings.ToLower(name) // RFC 3986, section 3.1
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
	// An @ after the hosts means that part of a password was parsed as a path. Context names
	// in Kubernetes contain one.
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

// check rejects parts that would otherwise be ignored.
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

// hosts parses a list of addresses. Errors do not repeat an address: it may be part of an
// unescaped password.
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

// CheckFenced rejects, without connecting, a URL whose locks have no tokens: [Backend.View]
// can list them, but [Backend.Fenced] cannot acquire them. Errors are [*URLError].
func (u *URL) CheckFenced() error {
	if u.scheme.CheckFenced == nil {
		return nil
	}
	return u.scheme.CheckFenced(u)
}

// isHost accepts IP addresses and the characters of DNS names.
func isHost(s string) bool {
	return s != "" && (net.ParseIP(s) != nil || !strings.ContainsFunc(s, func(r rune) bool {
		return !(r == '-' || r == '.' || r == '_' || '0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z')
	}))
}

// Kind returns the [Scheme.Kind].
func (u *URL) Kind() string { return u.scheme.Kind }

// Hosts returns the addresses, each host:port; none for a kind without hosts.
func (u *URL) Hosts() []string {
	if u.scheme.Port == "" {
		return nil
	}
	return slices.Clone(u.hosts)
}

// Namespace returns the text in place of the hosts, for a kind without hosts.
func (u *URL) Namespace() string {
	if u.scheme.Port != "" || len(u.hosts) == 0 {
		return ""
	}
	return u.hosts[0]
}

// Path returns the path with a leading slash and no trailing one; empty without one.
func (u *URL) Path() string { return u.path }

// User returns the user and password; nil without them.
func (u *URL) User() *url.Userinfo { return u.user }

// Client returns the URL for the backend's client, with secrets but no driver settings.
func (u *URL) Client() string { return u.raw }

// Query returns the options of the client.
func (u *URL) Query() url.Values { return u.query }

// Setting returns the value of one of [Scheme.Settings]; empty if it is not given.
func (u *URL) Setting(name string) string { return u.settings.Get(name) }

// Public returns the URL without user, password and client options: fit for logs, and for
// commands that only need the address.
func (u *URL) Public() string {
	path := (&url.URL{Path: u.path}).EscapedPath()
	path = strings.ReplaceAll(path, "@", "%40") // Parse treats a plain @ as part of a password
	public := u.written + "://" + strings.Join(u.hosts, ",") + path
	if len(u.settings) > 0 {
		public += "?" + u.settings.Encode()
	}
	return public
}

// String returns [URL.Public], so that printing a URL shows no secret.
func (u *URL) String() string { return u.Public() }

// GoString returns [URL.Public] as well.
func (u *URL) GoString() string { return u.Public() }

func article(kind string) string {
	if strings.ContainsAny(kind[:1], "aeiou") {
		return "an " + kind
	}
	return "a " + kind
}
