package elect

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/interlock-dev/interlock/driver"
)

// MaxData is the longest data that a leader can proclaim or save, in bytes.
const MaxData = 32 << 10

// record is what a leader keeps under the election's name, as JSON. Its token is
// the term's; a leader writes it before it leads, which keeps every former leader
// from writing it, and ends their nominations.
type record struct {
	Data    []byte `json:"data,omitempty"`
	Nominee string `json:"nominee,omitempty"`
}

// The names of what is kept in Values. A key has no slash, so that no two pairs
// of key and name are kept under one.
func recordName(name string) string     { return "term/" + name }
func savedName(key, name string) string { return "saved/" + key + "/" + name }

// maxKey leaves room for savedName within driver.MaxName.
const maxKey = 32

func checkKey(key string) error {
	if key == "" || len(key) > maxKey || strings.Contains(key, "/") {
		return fmt.Errorf("the key %q must have 1 to %d bytes and no slash", key, maxKey)
	}
	return nil
}

func (r record) encode() ([]byte, error) {
	if err := checkData(r.Data); err != nil {
		return nil, err
	}
	if !utf8.ValidString(r.Nominee) {
		return nil, fmt.Errorf("the successor %q is not valid UTF-8", r.Nominee)
	}
	return json.Marshal(r)
}

func checkData(data []byte) error {
	if len(data) > MaxData {
		return fmt.Errorf("the data has %d bytes, at most %d are allowed", len(data), MaxData)
	}
	return nil
}

func decode(v driver.Value) (r record, err error) {
	if v.Token == 0 {
		return r, nil
	}
	if err := json.Unmarshal(v.Data, &r); err != nil {
		return r, fmt.Errorf("what %q wrote with token %d is not the record of an election: %w", v.Source, v.Token, err)
	}
	return r, nil
}

// identityOf is who stands behind the owner of a lock, which is an identity and
// a part that is unique to the attempt.
func identityOf(owner string) string {
	if i := strings.LastIndexByte(owner, '/'); i >= 0 {
		return owner[:i]
	}
	return owner
}
