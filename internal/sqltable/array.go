package sqltable

import (
	"strconv"
	"strings"
)

// Arrays writes arrays of PostgreSQL as parameters: in binary if the client does that, otherwise as text.
type Arrays struct{ binary bool }

// Arrays returns how the client of t sends arrays.
func (t Tables) Arrays() Arrays {
	_, binary := t.db.(interface{ SendsArrays() })
	return Arrays{binary}
}

// Numbers returns numbers.
func (a Arrays) Numbers(all []int64) any { return either(a, all, Numbers) }

// Texts returns texts.
func (a Arrays) Texts(all []string) any { return either(a, all, Texts) }

func either[V any](a Arrays, all []V, text func([]V) string) any {
	if a.binary {
		return all
	}
	return text(all)
}

// Bytes returns byte strings; nil is empty.
func (a Arrays) Bytes(all [][]byte) any {
	for i, b := range all {
		if b == nil { // would be null
			all[i] = []byte{}
		}
	}
	return either(a, all, Bytes)
}

// TextBytes returns the bytes of texts.
func (a Arrays) TextBytes(all []string) any {
	if !a.binary {
		return Bytes(all)
	}
	bytes := make([][]byte, len(all))
	for i, s := range all {
		bytes[i] = []byte(s)
	}
	return bytes
}

// Numbers returns an array of PostgreSQL as text, which every client can send.
func Numbers(all []int64) string {
	return array(all, 12*len(all), func(b []byte, n int64) []byte { return strconv.AppendInt(b, n, 10) })
}

// Texts returns an array of texts, like [Numbers].
func Texts(all []string) string {
	return array(all, 24*len(all), func(b []byte, s string) []byte { return append(append(append(b, '"'), escape.Replace(s)...), '"') })
}

var escape = strings.NewReplacer(`"`, `\"`, `\`, `\\`)

// Bytes returns an array of byte strings, like [Numbers].
func Bytes[T string | []byte](all []T) string {
	size := 0
	for _, s := range all {
		size += 2*len(s) + len(`"\\x",`)
	}
	return array(all, size, func(b []byte, s T) []byte {
		return append(appendHex(append(b, `"\\x`...), s), '"')
	})
}

// Clean returns a text for people as both databases store it: UTF-8 without NUL.
func Clean(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}

// Literal returns a text or bytes as a literal of MariaDB that no sql_mode and no character set changes.
func Literal[T string | []byte](text T) string { return string(AppendLiteral(nil, text)) }

// AppendLiteral appends a [Literal].
func AppendLiteral[T string | []byte](b []byte, text T) []byte {
	return append(appendHex(append(b, "x'"...), text), '\'')
}

func appendHex[T string | []byte](b []byte, text T) []byte {
	const digits = "0123456789abcdef"
	for i := range len(text) {
		b = append(b, digits[text[i]>>4], digits[text[i]&15])
	}
	return b
}

// array joins the elements; size is their approximate number of bytes.
func array[V any](all []V, size int, element func([]byte, V) []byte) string {
	b := append(make([]byte, 0, size+2), '{')
	for i, v := range all {
		if i > 0 {
			b = append(b, ',')
		}
		b = element(b, v)
	}
	return string(append(b, '}'))
}
