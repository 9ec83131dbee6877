package redis

import (
	"encoding/base64"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/interlock-dev/interlock/driver"
)

// Locks of other clients are recognized by the shape of what they write. For
// strings, which any program may write, that is a guess. It affects only what is
// shown, never what is locked.

var (
	uuidHex      = regexp.MustCompile(`^[0-9a-f]{32}$`)
	redissonID   = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}:[0-9]+$`)
	rueidislocks = regexp.MustCompile(`(^|:)[0-9]+:`)
)

// nameForeign names the writer of a string key, as far as its value shows.
func nameForeign(key, value string) (text string, known bool) {
	switch {
	case uuidHex.MatchString(value):
		return "redis-py " + value, true
	case isRandom16(base64.StdEncoding, value):
		return "redsync " + value, true
	case len(value) == 24 && rueidislocks.MatchString(key) && !isText(value):
		return fmt.Sprintf("rueidislock %x", value), true
	case len(value) >= 22 && isRandom16(base64.RawURLEncoding, value[:22]):
		if value[22:] == "" {
			return "redislock " + value, true
		}
		return fmt.Sprintf("redislock %s (%s)", value[:22], printable(value[22:])), true
	}
	return printable(value), false
}

// isRandom16 reports whether text is an encoding of sixteen random bytes. It
// requires letters of both cases, which one in fifty thousand lacks.
func isRandom16(e *base64.Encoding, text string) bool {
	bytes, err := e.Strict().DecodeString(text)
	return err == nil && len(bytes) == 16 && strings.ToLower(text) != text && strings.ToUpper(text) != text
}

func isText(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return !strconv.IsPrint(r) })
}

func printable(s string) string {
	if isText(s) {
		return s
	}
	return strconv.Quote(s)
}

// nameHash names the holder of a Redisson lock, and the field by which a plain one
// can be broken; known is false if the hash is something else.
func nameHash(fields map[string]string) (text, raw string, known bool) {
	mode, readWrite := fields["mode"]
	var holders []string
	for field, count := range fields {
		if field == "mode" {
			continue
		}
		if _, err := driver.ParseInt(count); err != nil || !redissonID.MatchString(strings.TrimSuffix(field, ":write")) {
			return "", "", false
		}
		holders = append(holders, field)
	}
	slices.Sort(holders)
	switch {
	case len(holders) == 0 || readWrite && mode != "read" && mode != "write":
		return "", "", false
	case readWrite:
		return fmt.Sprintf("Redisson %s lock %s", mode, strings.Join(holders, ", ")), "", true
	case len(holders) > 1:
		return "", "", false
	}
	return "Redisson " + holders[0], holders[0], true
}

// redissonKeys returns Redisson's list of a fair lock's waiters, and their deadlines.
func redissonKeys(lock string) []string {
	name := lock
	if !strings.Contains(lock, "{") {
		name = "{" + lock + "}"
	}
	return []string{"redisson_lock_queue:" + name, "redisson_lock_timeout:" + name}
}

// redissonChannel returns the channel of Redisson's waiters.
func redissonChannel(lock string) string {
	if strings.Contains(lock, "{") {
		return "redisson_lock__channel:" + lock
	}
	return "redisson_lock__channel:{" + lock + "}"
}

// shown is the state of a name, and the literal content of its key.
type shown struct {
	driver.LockState
	kind  string // the key's type
	raw   string // what identifies the holder in the key; empty if that cannot be broken
	known bool   // it is the lock of a known client
}
