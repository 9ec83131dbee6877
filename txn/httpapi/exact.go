package httpapi

import (
	"encoding/json"
	"reflect"
	"strings"
)

// exact refuses fields that encoding/json accepts and other parsers read differently: repeated ones,
// and those in another case. The text of d was decoded into a t before. Raw values belong to the
// user, and are not checked.
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

// nested reports whether a value can contain fields of this package.
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
		return nil, badRequest("the request has %q twice", name)
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
	return nil, badRequest("the request has %q in another spelling", name)
}
