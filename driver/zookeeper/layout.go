package zookeeper

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// layout turns names into paths. See docs/adr/011-zookeeper.md.
type layout struct {
	root string // "/interlock", never ending in a slash
	raw  bool
}

// reserved begins the names of our nodes that are not locks.
const reserved = "interlock."

func (l layout) base() string   { return l.root + "/" + reserved + "base" }
func (l layout) breaks() string { return l.root + "/" + reserved + "breaks" }

// lock returns the parent node of a lock's contenders.
func (l layout) lock(name string) string {
	if l.raw {
		return l.root + "/" + name
	}
	return l.root + "/" + escape(name)
}

// name returns the name of a lock's node. ok is false for nodes of another form.
func (l layout) name(path string) (name string, ok bool) {
	name, ok = strings.CutPrefix(path, l.root+"/")
	switch {
	case !ok || name == "" || strings.HasPrefix(name, reserved):
		return "", false
	case l.raw:
		return name, true
	}
	plain, err := url.PathUnescape(name)
	return plain, err == nil && escape(plain) == name
}

// check refuses names that the layout does not allow.
func (l layout) check(op, name string) error {
	var why string
	switch {
	case name == "" || len(name) > driver.MaxName:
		why = fmt.Sprintf("it has %d bytes, 1 to %d are allowed", len(name), driver.MaxName)
	case l.raw:
		why = rawFault(name)
	}
	if why == "" {
		return nil
	}
	return fail.New(op, "", interlock.Bug, fmt.Errorf("%w: %s", interlock.ErrName, why))
}

// rawFault returns why a name is not a valid path; empty if it is.
func rawFault(name string) string {
	if !utf8.ValidString(name) || strings.IndexFunc(name, forbidden) >= 0 {
		return "it has a character that a path cannot have"
	}
	for segment := range strings.SplitSeq(name, "/") {
		switch {
		case segment == "" || segment == "." || segment == "..":
			return "it has a segment that a path cannot have"
		case strings.HasPrefix(segment, reserved):
			return "it has a segment that begins with " + reserved
		}
		if _, ok := readNode(segment); ok {
			return "it has a segment that looks like a contender"
		}
	}
	return ""
}

// forbidden reports a character that ZooKeeper refuses in paths.
func forbidden(r rune) bool {
	return r <= 0x1f || r >= 0x7f && r <= 0x9f || r >= 0xd800 && r <= 0xf8ff || r >= 0xfff0 && r <= 0xffff
}

// escape turns any name into one segment: letters, digits and most punctuation of ASCII stay,
// every other byte becomes %XX.
func escape(name string) string {
	plainDots := strings.Trim(name, ".") == ""
	own := strings.HasPrefix(name, reserved)
	var b strings.Builder
	for i := range len(name) {
		c := name[i]
		if c <= ' ' || c >= 0x7f || c == '/' || c == '%' || plainDots || own && i == 0 {
			fmt.Fprintf(&b, "%%%02X", c)
			continue
		}
		b.WriteByte(c)
	}
	return b.String()
}

// parents lists the nodes above path, the topmost first.
func parents(path string) []string {
	var all []string
	for i := 1; i < len(path); i++ {
		if path[i] == '/' {
			all = append(all, path[:i])
		}
	}
	return all
}

// record is the content of our contenders' nodes.
type record struct {
	Owner text      `json:"owner"`
	Asked time.Time `json:"asked"` // by the contender's own clock
	TTL   int64     `json:"ttl_ms"`
	scale           // the scale that the request used
	// Unconfirmed: its contender waits, and does not hold before it has overwritten this; see turn.go.
	Unconfirmed bool `json:"unconfirmed,omitempty"`
}

// encode returns the output of json.Marshal, which costs several times as much.
func (r record) encode() []byte {
	owner := []byte(`"` + string(r.Owner) + `"`)
	if !r.Owner.isPlain() {
		owner = encode(r.Owner)
	}
	b := make([]byte, 0, len(owner)+120)
	b = append(append(b, `{"owner":`...), owner...)
	b = r.Asked.AppendFormat(append(b, `,"asked":"`...), time.RFC3339Nano)
	b = strconv.AppendInt(append(b, `","ttl_ms":`...), r.TTL, 10)
	b = strconv.AppendInt(append(b, `,"base":`...), r.Base, 10)
	b = strconv.AppendInt(append(b, `,"anchor":`...), r.Anchor, 10)
	if r.Unconfirmed {
		b = append(b, `,"unconfirmed":true`...)
	}
	return append(b, '}')
}

func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic("zookeeper: record: " + err.Error()) // strings, numbers and recent times always marshal
	}
	return b
}

// readRecord parses a record. ok is false for the data of another client.
func readRecord(data []byte) (r record, ok bool) {
	err := json.Unmarshal(data, &r)
	return r, err == nil && r.Owner != ""
}

// newID returns a random UUID (RFC 9562, version 4), as other clients write it.
func newID() string {
	var b [16]byte
	rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	id := hex.EncodeToString(b[:])
	return id[:8] + "-" + id[8:12] + "-" + id[12:16] + "-" + id[16:20] + "-" + id[20:]
}

// nodeForm matches the nodes of all clients: the random part, the marker, and the number that
// the server appends, which is negative after 2^31 nodes.
var nodeForm = regexp.MustCompile(`^(?:_c_)?([0-9a-fA-F-]{32,36})(-lock-|__lock__|__rlock__)(-?\d{9,10})$`)

// text is a user's string. In JSON it is a string, or an object with its bytes if they are not
// UTF-8.
type text string

// MarshalJSON implements json.Marshaler.
func (t text) MarshalJSON() ([]byte, error) {
	if utf8.ValidString(string(t)) {
		return json.Marshal(string(t))
	}
	return json.Marshal(map[string][]byte{"bytes": []byte(t)})
}

// isPlain reports whether JSON needs no escapes for t.
func (t text) isPlain() bool {
	for i := range len(t) {
		if c := t[i]; c < ' ' || c > '~' || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			return false
		}
	}
	return true
}

// UnmarshalJSON implements json.Unmarshaler.
func (t *text) UnmarshalJSON(data []byte) error {
	if len(data) > 0 && data[0] != '{' {
		return json.Unmarshal(data, (*string)(t))
	}
	var raw struct{ Bytes []byte }
	err := json.Unmarshal(data, &raw)
	*t = text(raw.Bytes)
	return err
}
