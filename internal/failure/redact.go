package failure

import (
	"errors"
	"net/url"
)

// RedactURL returns an address for errors, logs and lists: without its user information,
// query and fragment, which can contain secrets.
func RedactURL(address string) string {
	u, err := url.Parse(address)
	if err != nil || u.Opaque != "" { // such as http:user:password@host
		return "an address that cannot be read"
	}
	hidden := u.RawQuery != "" || u.ForceQuery
	u.User, u.RawQuery, u.Fragment, u.RawFragment, u.ForceQuery = nil, "", "", "", false
	if hidden {
		return u.String() + "?…"
	}
	return u.String()
}

// RedactError returns an error of package net/url or of an HTTP client with its address
// redacted by [RedactURL]. It omits a parser's message, which can quote part of a
// password. It returns any other error unchanged.
func RedactError(err error) error {
	var of *url.Error
	switch {
	case !errors.As(err, &of):
		return err
	case of.Op == "parse":
		return errors.New("the address is not a valid URL")
	}
	return &url.Error{Op: of.Op, URL: RedactURL(of.URL), Err: of.Err}
}
