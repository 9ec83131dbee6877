package branch

import (
	"errors"
	"net/url"
)

// Redact is an address as it may be shown in errors, logs and lists: without its user
// information, query and fragment, which can have secrets in them.
func Redact(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return "an address that cannot be read"
	}
	hidden := u.RawQuery != "" || u.ForceQuery
	u.User, u.RawQuery, u.Fragment, u.RawFragment, u.ForceQuery = nil, "", "", "", false
	if hidden {
		return u.String() + "?…"
	}
	return u.String()
}

// redacted is an error of a client without what the address in it hides.
func redacted(err error) error {
	var of *url.Error
	if !errors.As(err, &of) {
		return err
	}
	return &url.Error{Op: of.Op, URL: Redact(of.URL), Err: of.Err}
}
