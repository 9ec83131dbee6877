package sqltable

import (
	"strconv"
	"strings"
)

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
	const digits = "0123456789abcdef"
	size := 0
	for _, s := range all {
		size += 2*len(s) + len(`"\\x",`)
	}
	return array(all, size, func(b []byte, s T) []byte {
		b = append(b, `"\\x`...)
		for i := range len(s) {
			b = append(b, digits[s[i]>>4], digits[s[i]&15])
		}
		return append(b, '"')
	})
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
