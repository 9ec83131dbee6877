package redis

import (
	"context"
	"fmt"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

var versionScript = newScript(lua("version_write"))

// Versions keeps the newest state of each entity; one script compares and writes.
// It implements driver.Versions. A state is the hash
// interlock:{TAG}:version:PREFIX+NAME, which never expires; its field version has
// 19 digits. A crash without appendfsync always, or a failover to a replica, may
// lose a state with its stamp: an older state may then be applied, until the newest
// arrives again.
type Versions struct {
	conn   *conn
	prefix string
}

var _ driver.Versions = (*Versions)(nil)

// NewVersions returns the states under prefix, which may be empty; it sends
// nothing. The caller closes the client.
func NewVersions(client rueidis.Client, prefix string) *Versions {
	return &Versions{conn: newGuardConn(client, keepsMarks), prefix: prefix}
}

func (s *Versions) key(name string) string { return fenceKey("version", s.prefix+name) }

// Apply stores a state that is newer than the stored one, by one request; see
// driver.Versions.
func (s *Versions) Apply(ctx context.Context, name string, v driver.Versioned) (driver.VersionOutcome, driver.Versioned, error) {
	return s.write(ctx, request{op: "apply state", name: name}, v, "apply", flag(v.Terminal && v.TerminalWins))
}

// Replace stores a state if the stored one has the stamp old, by one request; see
// driver.Versions.
func (s *Versions) Replace(ctx context.Context, name string, old driver.Stamp, v driver.Versioned) (driver.VersionOutcome, driver.Versioned, error) {
	asked := request{op: "replace state", name: name}
	if v.Stamp.Compare(old) <= 0 {
		return 0, driver.Versioned{}, problem(asked, interlock.Bug, fmt.Errorf("%v is not newer than %v", v.Stamp, old))
	}
	return s.write(ctx, asked, v, "replace", driver.FormatPadded(old.Version), old.Tie)
}

func (s *Versions) write(ctx context.Context, asked request, v driver.Versioned, how string, more ...string) (driver.VersionOutcome, driver.Versioned, error) {
	if err := checkName(asked.name, ""); err != nil {
		return 0, driver.Versioned{}, err
	}
	if err := v.Check(); err != nil {
		return 0, driver.Versioned{}, problem(asked, interlock.Bug, err)
	}
	answer, err := s.conn.texts(ctx, asked, versionScript, batch{
		keys: []string{s.key(asked.name)},
		args: append([]string{how, driver.FormatPadded(v.Stamp.Version), v.Stamp.Tie, flag(v.Deleted), flag(v.Terminal), string(v.Data)}, more...),
	})
	if err != nil {
		return 0, driver.Versioned{}, err
	}
	return writtenVersion(asked, v, answer)
}

// writtenVersion parses the script's answer.
func writtenVersion(asked request, v driver.Versioned, answer []string) (driver.VersionOutcome, driver.Versioned, error) {
	if len(answer) == 1 && answer[0] == driver.VersionApplied.String() {
		v.TerminalWins = false
		return driver.VersionApplied, v, nil
	}
	for _, o := range []driver.VersionOutcome{driver.VersionStale, driver.VersionDuplicate, driver.VersionTerminal} {
		if len(answer) == 6 && answer[0] == o.String() {
			stored, err := parseVersioned(asked, answer[1:])
			return o, stored, err
		}
	}
	return 0, driver.Versioned{}, uncertain(asked, errReply)
}

// Get reads a state; see driver.Versions.
func (s *Versions) Get(ctx context.Context, name string) (driver.Versioned, error) {
	asked := request{op: "get state", name: name}
	if err := checkName(name, ""); err != nil {
		return driver.Versioned{}, err
	}
	fields, err := s.conn.fields(ctx, asked, s.key(name))
	if err != nil || len(fields) == 0 {
		return driver.Versioned{}, err
	}
	return parseVersioned(asked, []string{fields["version"], fields["tie"], fields["deleted"], fields["terminal"], fields["data"]})
}

// parseVersioned parses the fields of a hash; all empty means no state.
func parseVersioned(asked request, f []string) (v driver.Versioned, err error) {
	if f[0] == "" && f[4] == "" {
		return v, nil
	}
	v = driver.Versioned{Stamp: driver.Stamp{Tie: f[1]}, Deleted: f[2] == "1", Terminal: f[3] == "1", Data: []byte(f[4])}
	// A number with fewer digits would be compared wrongly.
	if v.Stamp.Version, err = driver.ParsePadded(f[0]); err != nil || v.Stamp.Version < 1 {
		return driver.Versioned{}, problem(asked, interlock.Definite, fmt.Errorf("the state is damaged: version %q", f[0]))
	}
	return v, nil
}

func flag(set bool) string {
	if set {
		return "1"
	}
	return "0"
}
