package zookeeper

import (
	"encoding/json"
	"unicode/utf8"
)

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
