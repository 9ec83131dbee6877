// Package strictjson decodes JSON that all parsers read alike. It is for requests that must not be
// misread.
package strictjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"unicode/utf8"
)

// Decode decodes one value. Text that is not UTF-8, further values, and fields that are unknown,
// repeated or in another case are errors. A json.RawMessage belongs to the user, and only its syntax
// is checked.
func Decode[T any](text []byte) (v T, err error) {
	if !utf8.Valid(text) {
		return v, errors.New("it is not UTF-8")
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&v); err != nil {
		return v, err
	}
	if _, err := d.Token(); err != io.EOF {
		return v, errors.New("it has more than one JSON value")
	}
	return v, exact(json.NewDecoder(bytes.NewReader(text)), reflect.TypeFor[T]())
}

// exact refuses fields that encoding/json accepts and other parsers read differently: repeated ones,
// and those in another case. The text of d was decoded into a t before.
func exact(d *json.Decoder, t reflect.Type) error {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if !nested(t) {
		var passed json.RawMessage
		return d.Decode(&passed)
	}
	open, err := d.Token()
	if err != nil || open == nil { // null
		return err
	}
	seen := map[string]bool{}
	for d.More() {
		of, err := member(d, t, seen)
		if err == nil {
			err = exact(d, of)
		}
		if err != nil {
			return err
		}
	}
	_, err = d.Token() // the closing delimiter
	return err
}

// nested reports whether a value can contain fields that are checked.
func nested(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Struct, reflect.Map:
		return true
	case reflect.Slice:
		return t != reflect.TypeFor[json.RawMessage]()
	}
	return false
}

// member reads the name of the next member of a t, if it has one, and returns the member's type.
func member(d *json.Decoder, t reflect.Type, seen map[string]bool) (reflect.Type, error) {
	if t.Kind() == reflect.Slice {
		return t.Elem(), nil
	}
	token, err := d.Token()
	if err != nil {
		return nil, err
	}
	name, _ := token.(string)
	if seen[name] {
		return nil, fmt.Errorf("it has %q twice", name)
	}
	seen[name] = true
	if t.Kind() == reflect.Map {
		return t.Elem(), nil
	}
	for i := range t.NumField() {
		if own, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ","); own == name {
			return t.Field(i).Type, nil
		}
	}
	return nil, fmt.Errorf("it has %q in another spelling", name)
}
