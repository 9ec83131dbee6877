package httpapi

import (
	"fmt"
	"net/netip"
	"net/url"
	"path"
	"strings"

	"github.com/interlock-dev/interlock/internal/failure"
)

// Within returns an [Options.Allow] that permits the addresses below the given ones. Each has a
// scheme, a host and a path. An address is below another one if it has the same scheme, host and
// port, and its path is the same or has further segments. So http://a/b and http://a/b/c are below
// http://a/b, but http://a/bc is not. Paths that servers interpret differently are refused: with ;
// or \, with dots or empty segments, or with one of these, a slash or a percent sign encoded.
func Within(addresses ...string) (func(*url.URL) error, error) {
	var all []*url.URL
	for _, address := range addresses {
		u, err := url.Parse(address)
		if err != nil || u.Hostname() == "" || u.Path == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
			return nil, failure.Bug("allow", failure.RedactURL(address), "it is not a scheme, a host and a path, as in http://10.0.0.7/")
		}
		if err := canonical(u); err != nil {
			return nil, failure.Bug("allow", failure.RedactURL(address), "%w", err)
		}
		all = append(all, u)
	}
	return func(u *url.URL) error {
		if err := canonical(u); err != nil {
			return err
		}
		for _, below := range all {
			if below.Scheme == u.Scheme && hostPort(below) == hostPort(u) && beneath(u.Path, below.Path) {
				return nil
			}
		}
		return fmt.Errorf("the address is not below one that is allowed")
	}, nil
}

// canonical refuses a path that servers interpret differently.
func canonical(u *url.URL) error {
	encoded := strings.ToLower(u.EscapedPath())
	for _, trick := range []string{"%2f", "%2e", "%5c", "%3b", "%25", "%00"} {
		if strings.Contains(encoded, trick) {
			return fmt.Errorf("the path has %s, which servers interpret differently", trick)
		}
	}
	if strings.ContainsAny(u.Path, `;\`) {
		return fmt.Errorf(`the path has ; or \, which servers interpret differently`)
	}
	if clean := path.Clean("/" + u.Path); u.Path != "" && u.Path != clean && u.Path != clean+"/" {
		return fmt.Errorf("the path has dots or empty segments")
	}
	return nil
}

// beneath reports whether a path equals begin, or is begin with further segments.
func beneath(p, begin string) bool {
	if p == "" {
		p = "/"
	}
	return p == begin || strings.HasPrefix(p, strings.TrimSuffix(begin, "/")+"/")
}

// hostPort returns the host in its canonical form, with its port.
func hostPort(u *url.URL) string {
	host := strings.TrimSuffix(strings.ToLower(u.Hostname()), ".")
	if ip, err := netip.ParseAddr(host); err == nil {
		host = ip.Unmap().String()
	}
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return host + " " + port
}
