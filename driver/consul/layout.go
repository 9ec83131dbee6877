package consul

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// lockFlag in Flags marks a key as a lock, by the convention of Consul's own clients.
const lockFlag = 0x2ddccbc058a50c18

// layout maps names to keys. The key of a lock is PREFIX + NAME + "/.lock", as that of
// "consul lock". All other keys are below the prefix's sibling with ".meta".
type layout struct{ prefix string }

const lockSuffix = "/.lock"

func (l layout) lock(name string) string { return l.prefix + escape(name) + lockSuffix }

// name returns the name of a lock's key, the inverse of lock. ok is false for other keys.
func (l layout) name(key string) (name string, ok bool) {
	body, begins := strings.CutPrefix(key, l.prefix)
	body, ends := strings.CutSuffix(body, lockSuffix)
	if !begins || !ends {
		return "", false
	}
	name, err := url.PathUnescape(body)
	return name, err == nil && name != "" && escape(name) == body
}

func (l layout) meta() string { return strings.TrimSuffix(l.prefix, "/") + ".meta/" }

// BaseKey returns the key of the base of tokens under a prefix, Options.Prefix.
func BaseKey(prefix string) string { return layout{cmp.Or(prefix, defaultPrefix)}.base() }

func (l layout) base() string { return l.meta() + "base" }

func (l layout) fence(session string) string { return l.meta() + "session/" + session }

func (l layout) value(name string) string { return l.meta() + "value/" + escape(name) }

func (l layout) breaks() string { return l.meta() + "break/" }

// escape keeps letters, digits and "_.-/", and writes other bytes as "%" and two
// hexadecimal digits. It also escapes a dot that begins a segment, and a slash that
// would make an empty one: other programs interpret them.
func escape(name string) string {
	var b strings.Builder
	for i, c := range []byte(name) {
		begins := i == 0 || name[i-1] == '/'
		switch {
		case c == '/' && !begins && i < len(name)-1, c == '.' && !begins, c == '_' || c == '-',
			'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9':
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

func checkName(op, name string) error {
	if name == "" || len(name) > driver.MaxName {
		return refused(op, "", fmt.Errorf("%w: it has %d bytes, 1 to %d are allowed", interlock.ErrName, len(name), driver.MaxName))
	}
	return nil
}

// record is the value of a lock's key.
type record struct {
	Owner string `json:"owner"`
	// Base is what the token counts from, and Index the index at which it was set; 0 is the
	// index at which the lock was taken.
	Base  int64     `json:"base"`
	Index uint64    `json:"index,omitempty"`
	Since time.Time `json:"since"` // by the holder's clock
}

// readRecord parses a record; ok is false for other clients' keys.
func readRecord(e entry) (r record, ok bool) {
	ok = e.Flags == lockFlag && json.Unmarshal(e.Value, &r) == nil && r.Owner != "" && r.Base > 0 && r.Index <= e.ModifyIndex
	return r, ok
}

// token returns that of the lock that was taken at an index.
func (r record) token(index uint64) (interlock.Token, error) {
	from := base{r.Base, r.Index}
	if r.Index == 0 {
		from.index = index
	}
	return interlock.NewToken(from.at(index), 0)
}
