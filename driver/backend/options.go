package backend

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"
)

// common are the settings of every kind.
var common = []string{"prefix", "ttl"}

// setting reports whether name is a setting, and its allowed values; nil allows any.
func (s *Scheme) setting(name string) (allowed []string, ok bool) {
	if allowed, ok = s.Settings[name]; ok {
		return allowed, true
	}
	return nil, slices.Contains(common, name)
}

// divide separates the driver's settings from the client's options, and removes them from
// the URL.
func (u *URL) divide(parsed *url.URL) error {
	given, err := url.ParseQuery(parsed.RawQuery)
	if err != nil {
		return &URLError{"the options of the " + u.Kind() + " URL cannot be read: they are name=value, joined by &, escaped with %"}
	}
	u.settings, u.query = url.Values{}, given
	for _, name := range slices.Sorted(maps.Keys(given)) {
		allowed, ok := u.scheme.setting(name)
		if !ok {
			continue
		}
		values := given[name]
		if len(values) != 1 || values[0] == "" || allowed != nil && !slices.Contains(allowed, values[0]) {
			return &URLError{fmt.Sprintf("the option %q of the %s URL is given once, %s", name, u.Kind(), choice(allowed))}
		}
		u.settings[name] = values
		delete(given, name)
		parsed.RawQuery = strings.ReplaceAll(given.Encode(), "+", "%20") // pgx does not read a plus as a space
	}
	_, err = u.ttl()
	return err
}

func choice(allowed []string) string {
	if allowed == nil {
		return "with a value"
	}
	return "as " + strings.Join(allowed, " or ")
}

// ttl returns the setting ttl; 0 without one.
func (u *URL) ttl() (time.Duration, error) {
	text := u.Setting("ttl")
	if text == "" {
		return 0, nil
	}
	ttl, err := time.ParseDuration(text)
	if err != nil || ttl <= 0 {
		return 0, &URLError{"the option \"ttl\" of the " + u.Kind() + " URL is a duration, as 10s or 1m30s"}
	}
	if err := u.CheckTTL(ttl); err != nil {
		return 0, &URLError{err.Error()}
	}
	return ttl, nil
}

// checkOptions rejects an unknown option. Clients would ignore it, or send it to a server
// that then refuses the connection. The error repeats the option's name, never its value,
// which may be a password.
func (u *URL) checkOptions() error {
	for _, name := range slices.Sorted(maps.Keys(u.query)) {
		if !slices.Contains(u.scheme.Options, name) {
			reason := fmt.Sprintf("%s URL has no option %q; known are %s", article(u.Kind()), name, u.scheme.known())
			if u.scheme.Hint != "" {
				reason += "; " + u.scheme.Hint
			}
			return &URLError{reason}
		}
	}
	return nil
}

// known returns all options of a URL, the settings last.
func (s *Scheme) known() string {
	return strings.Join(slices.Concat(s.Options, slices.Sorted(maps.Keys(s.Settings)), common), ", ")
}

// A TTLError reports which TTL a backend can grant instead of the requested one.
type TTLError struct{ Reason string }

// Error returns one sentence, without the requested TTL.
func (e *TTLError) Error() string { return e.Reason }

// CheckTTL rejects, without connecting, a TTL that the backend cannot grant; 0 is the
// default. Errors are [*TTLError].
func (u *URL) CheckTTL(ttl time.Duration) error {
	s, units := u.scheme, ""
	if s.WholeSeconds {
		units = ", in whole seconds"
	}
	switch {
	case ttl == 0:
	case ttl < s.MinTTL || ttl > s.MaxTTL:
		return &TTLError{fmt.Sprintf("%s grants leases of %v to %v%s", s.Kind, s.MinTTL, s.MaxTTL, units)}
	case s.WholeSeconds && ttl%time.Second != 0:
		return &TTLError{fmt.Sprintf("%s grants leases in whole seconds; %v would do", s.Kind, ttl.Truncate(time.Second)+time.Second)}
	}
	return nil
}
