package redis

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

var putScript = newScript(lua("fence", "value_put").after(constants))

// reread is how often a watched value is read without a publication; rereadSoon is
// the delay after a failed read.
const (
	reread     = 5 * time.Second
	rereadSoon = 500 * time.Millisecond
)

// Values keeps one small value for each name, with the token of its writer; one
// script compares and writes. It implements driver.Values. A value is the hash
// interlock:{TAG}:value:PREFIX+NAME, which never expires. A crash without
// appendfsync always, or a failover to a replica, may lose the latest writes with
// their tokens. An older token can then write until the newest has written again.
// Watchers that saw a lost value do not go back.
type Values struct {
	conn   *conn
	prefix string
}

// NewValues returns the values under prefix, which may be empty; it sends nothing.
// The caller closes the client.
func NewValues(client rueidis.Client, prefix string) *Values {
	return &Values{conn: newGuardConn(client, keepsMarks), prefix: prefix}
}

func (v *Values) key(name string) string { return fenceKey("value", v.prefix+name) }

// Put stores a value unless a higher token has written; see driver.Values.
func (v *Values) Put(ctx context.Context, name string, value driver.Value) error {
	asked := request{op: "put value", name: name}
	if err := checkName(name, ""); err != nil {
		return err
	}
	if err := checkValue(asked, value); err != nil {
		return err
	}
	_, err := v.conn.enterMark(ctx, asked, putScript, driver.Raise{Resource: name, Token: value.Token}, batch{
		keys: []string{v.key(name)},
		args: append(tokenArgs(value.Token), value.Source, maxAhead, string(value.Data)),
	})
	return err
}

func checkValue(asked request, value driver.Value) error {
	switch {
	case !value.Token.Valid():
		return problem(asked, interlock.Bug, fmt.Errorf("%d is not a token", value.Token))
	case len(value.Data) > driver.MaxValue:
		return problem(asked, interlock.Bug, fmt.Errorf("the value has %d bytes, at most %d are allowed", len(value.Data), driver.MaxValue))
	}
	return nil
}

// Get reads a value; see driver.Values.
func (v *Values) Get(ctx context.Context, name string) (driver.Value, error) {
	value, _, err := v.get(ctx, name)
	return value, err
}

// get reads a value with its version.
func (v *Values) get(ctx context.Context, name string) (driver.Value, int64, error) {
	asked := request{op: "get value", name: name}
	if err := checkName(name, ""); err != nil {
		return driver.Value{}, 0, err
	}
	fields, err := v.conn.fields(ctx, asked, v.key(name))
	if err != nil || fields["token"] == "" {
		return driver.Value{}, 0, err
	}
	mark, err := parseMark(asked, fields["token"], fields["source"], fields["raised"])
	if err != nil {
		return driver.Value{}, 0, err
	}
	version, err := driver.ParseInt(fields["version"])
	if err != nil {
		return driver.Value{}, 0, problem(asked, interlock.Definite, fmt.Errorf("the value is damaged: version %q", fields["version"]))
	}
	return driver.Value{Data: []byte(fields["data"]), Token: mark.Token, Source: mark.Source, Written: mark.Raised}, version, nil
}

// Watch reads the value when a write is published, after an interruption, and every
// five seconds; see driver.Values. All watchers of one name share a subscription if
// they use the same Values.
func (v *Values) Watch(ctx context.Context, name string, each func(driver.Value)) error {
	if err := checkName(name, ""); err != nil {
		return err
	}
	var last seen
	return v.conn.follow(ctx, request{op: "watch value", name: name}, topic{name: v.key(name)},
		func(ctx context.Context, _ []string, _ bool) (time.Duration, error) {
			value, version, err := v.get(ctx, name)
			switch {
			case ctx.Err() != nil:
				return 0, nil // follow returns the error
			case interlock.Kind(err) == interlock.Definite && err != nil:
				return 0, err
			case err != nil:
				return rereadSoon, nil
			case last.before(value.Token, version):
				last = seen{true, value.Token, version}
				each(value)
			}
			return reread, nil
		})
}

// seen is the state that a watcher received last.
type seen struct {
	any     bool
	token   interlock.Token
	version int64
}

// before reports whether a state is newer than the one seen.
func (s seen) before(token interlock.Token, version int64) bool {
	return !s.any || token > s.token || token == s.token && version > s.version
}
