package elect

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/interlock-dev/interlock/driver"
)

// MaxData is the maximum length of data that a leader proclaims or saves, in bytes.
const MaxData = 32 << 10

// record is the value that a leader stores under the election's name, as JSON. Its token is the
// term's. A leader writes it before it leads: then the store rejects writes of every former
// leader, and their nominations end.
type record struct {
	Data    []byte `json:"data,omitempty"`
	Nominee string `json:"nominee,omitempty"`
}

// recordName and savedName return the names in Values. A key has no slash, so no two pairs of
// key and name share one.
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
		return r, fmt.Errorf("the record that %q wrote with token %d is not that of an election: %w", v.Source, v.Token, err)
	}
	return r, nil
}
