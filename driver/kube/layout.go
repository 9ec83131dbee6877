package kube

import (
	"fmt"
	"net/url"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// layout maps names to names of objects. A name that Kubernetes allows is
// unchanged, so that other clients share the lock; any other is escaped.
type layout struct{ prefix string }

// escaped begins the object names of escaped names. A raw name with that prefix is
// escaped as well, so that no two names share an object.
const escaped = "esc-"

// object returns the name of the Lease object for a lock. ok is false if it would
// exceed Kubernetes' 253 bytes.
func (l layout) object(name string) (object string, ok bool) {
	if strings.HasPrefix(name, escaped) || len(validation.IsDNS1123Subdomain(name)) > 0 {
		name = escape(name)
	}
	object = l.prefix + name
	return object, len(object) <= validation.DNS1123SubdomainMaxLength
}

// escape keeps lower-case letters and digits and writes every other byte as "-"
// and two hexadecimal digits.
func escape(name string) string {
	var b strings.Builder
	b.WriteString(escaped)
	for _, c := range []byte(name) {
		if 'a' <= c && c <= 'z' || '0' <= c && c <= '9' {
			b.WriteByte(c)
			continue
		}
		fmt.Fprintf(&b, "-%02x", c)
	}
	return b.String()
}

// name returns the name of a lock's object, the inverse of object. ok is false for other objects.
func (l layout) name(object string) (name string, ok bool) {
	name, ok = strings.CutPrefix(object, l.prefix)
	if body, found := strings.CutPrefix(name, escaped); ok && found {
		name, _ = url.PathUnescape(strings.ReplaceAll(body, "-", "%")) // empty after an error
	}
	if !ok || name == "" {
		return "", false
	}
	back, _ := l.object(name)
	return name, back == object
}

// locate returns the object of a caller's name.
func (l layout) locate(op, name string) (string, error) {
	if name == "" || len(name) > driver.MaxName {
		return "", refused(op, "", fmt.Errorf("%w: it has %d bytes, 1 to %d are allowed", interlock.ErrName, len(name), driver.MaxName))
	}
	object, ok := l.object(name)
	if !ok {
		return "", refused(op, "", fmt.Errorf("%w: as the name of an object it has %d bytes, at most %d are allowed",
			interlock.ErrName, len(object), validation.DNS1123SubdomainMaxLength))
	}
	return object, nil
}
