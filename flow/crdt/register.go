package crdt

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/interlock-dev/interlock/driver"
)

// A Register keeps the value of the greatest stamp: the last write. The zero value has none.
type Register struct{ m Map }

// Set writes a value of at most driver.MaxValue bytes, and returns the delta. If the register has a
// greater stamp, the write is lost. Take the stamp from a version.Clock that has observed the stamps
// that the writer has read; its tie is the writer's id. Of two writes with one stamp the greater value
// wins.
func (r *Register) Set(value string, at driver.Stamp) (delta Register, err error) {
	delta.m, err = r.m.write("set register", "", value, at, false)
	return delta, err
}

// Value returns the value and its stamp; a zero stamp if nothing was written.
func (r *Register) Value() (string, driver.Stamp) {
	value, at, _ := r.m.Get("")
	return value, at
}

// Merge adds what other knows.
func (r *Register) Merge(other Register) { r.m.Merge(other.m) }

func (r *Register) kind() kind             { return register }
func (r *Register) state() *driver.Lattice { return &r.m.l }
func (r *Register) changed()               {}

func (r *Register) check() error {
	if _, ok := r.m.l.Max[""]; len(r.m.l.Max) > 1 || len(r.m.l.Max) == 1 && !ok {
		return errors.New("a register has one field, without a name")
	}
	return r.m.check()
}

// A Map keeps for each key the value of the greatest stamp. The zero value is empty. A deleted key
// keeps its stamp, so that an older write does not bring it back.
type Map struct{ l driver.Lattice }

// Set writes the value of a key and returns the delta; see [Register.Set]. The key has at most
// driver.MaxName bytes.
func (m *Map) Set(key, value string, at driver.Stamp) (delta Map, err error) {
	return m.write("set key", key, value, at, false)
}

// Delete deletes a key and returns the delta. A write with a greater stamp brings it back.
func (m *Map) Delete(key string, at driver.Stamp) (delta Map, err error) {
	return m.write("delete key", key, "", at, true)
}

func (m *Map) write(op, key, value string, at driver.Stamp, deleted bool) (delta Map, err error) {
	err = at.Check()
	switch {
	case err != nil:
	case len(key) > driver.MaxName:
		err = fmt.Errorf("a key has %d bytes, at most %d are allowed", len(key), driver.MaxName)
	case len(value) > driver.MaxValue:
		err = fmt.Errorf("a value has %d bytes, at most %d are allowed", len(value), driver.MaxValue)
	}
	if err != nil {
		return delta, bug(op, "", err)
	}
	flag := "1"
	if deleted {
		flag = "0"
	}
	// A tie has no NUL, so the order of the bytes is that of version, tie, flag and value.
	delta.l.Max = map[string]string{key: driver.FormatPadded(at.Version) + at.Tie + "\x00" + flag + value}
	m.Merge(delta)
	return delta, nil
}

// parseWrite parses a field of write.
func parseWrite(text string) (value string, at driver.Stamp, live bool, err error) {
	head, tail, ok := strings.Cut(text, "\x00")
	if !ok || len(head) < driver.PaddedLength || tail == "" || tail[0] != '1' && tail != "0" {
		return "", at, false, errors.New("a value has no stamp")
	}
	at.Tie = head[driver.PaddedLength:]
	if at.Version, err = driver.ParsePadded(head[:driver.PaddedLength]); err == nil {
		err = at.Check()
	}
	if err == nil && len(tail) > driver.MaxValue+1 {
		err = fmt.Errorf("a value has %d bytes, at most %d are allowed", len(tail)-1, driver.MaxValue)
	}
	return tail[1:], at, tail[0] == '1', err
}

// Get returns the value of a key and its stamp. ok is false if the key was deleted, or was never set:
// then the stamp is zero.
func (m *Map) Get(key string) (value string, at driver.Stamp, ok bool) {
	text, ok := m.l.Max[key]
	if !ok {
		return "", driver.Stamp{}, false
	}
	value, at, ok, _ = parseWrite(text) // it has passed check
	return value, at, ok
}

// Keys returns the keys that are not deleted, in the order of their bytes.
func (m *Map) Keys() []string {
	keys := slices.Sorted(maps.Keys(m.l.Max))
	return slices.DeleteFunc(keys, func(key string) bool {
		_, _, ok := m.Get(key)
		return !ok
	})
}

// Merge adds what other knows.
func (m *Map) Merge(other Map) { m.l.Join(other.l) }

func (m *Map) kind() kind             { return lwwMap }
func (m *Map) state() *driver.Lattice { return &m.l }
func (m *Map) changed()               {}

func (m *Map) check() error {
	for key, text := range m.l.Max {
		if len(key) > driver.MaxName {
			return fmt.Errorf("a key has %d bytes, at most %d are allowed", len(key), driver.MaxName)
		}
		if _, _, _, err := parseWrite(text); err != nil {
			return err
		}
	}
	return nil
}
