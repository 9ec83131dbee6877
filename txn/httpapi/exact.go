package httpapi

import (
	"encoding/json"
	"reflect"
	"strings"
)

// exact refuses what encoding/json lets pass, and another reader of the same text takes
// for something else: a field that comes twice, or in other letters than its own. d has
// been decoded into a t before. What is raw in it is the user's, and not looked into.
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
	_, err = d.Token() // what closes it
	return err
}

// nested reports whether fields of ours may stand in a value.
func nested(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Struct, reflect.Map:
		return true
	case reflect.Slice:
		return t != reflect.TypeFor[json.RawMessage]()
	}
	return false
}

// member is the type of what comes next in a value of type t, behind its name if it has
// one.
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
	return nil, badRequest("the request has %q, which is written otherwise", name)
}
