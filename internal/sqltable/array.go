package sqltable

import (
	"encoding/hex"
	"strconv"
	"strings"
)

// Numbers is an array of PostgreSQL as text, which every client can send.
func Numbers(all []int64) string {
	return array(all, func(b []byte, n int64) []byte { return strconv.AppendInt(b, n, 10) })
}

// Texts is [Numbers] of texts.
func Texts(all []string) string {
	return array(all, func(b []byte, s string) []byte { return append(append(append(b, '"'), escape.Replace(s)...), '"') })
}

var escape = strings.NewReplacer(`"`, `\"`, `\`, `\\`)

// Bytes is [Numbers] of byte strings.
func Bytes(all [][]byte) string {
	return array(all, func(b []byte, s []byte) []byte { return append(hex.AppendEncode(append(b, `"\\x`...), s), '"') })
}

func array[V any](all []V, element func([]byte, V) []byte) string {
	b := []byte{'{'}
	for i, v := range all {
		if i > 0 {
			b = append(b, ',')
		}
		b = element(b, v)
	}
	return string(append(b, '}'))
}
