package sqltable

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Text returns a template in the database's SQL. A ? is a parameter. A word in braces is
// the name of a table or an index, or one of these:
//
//	{pg TEXT} {maria TEXT}   TEXT, a template, in one database, and nothing in the other
//	{now} {start}            the current time, and the start of the statement, which
//	                         PostgreSQL can compare by an index
//	{span}                   a parameter in microseconds, as an interval
//	{micros TIME}            microseconds from 1970 to a column, now or start
//	{millis TIME}            milliseconds
//	{?} {empty}              a parameter that may be empty, and an empty text: MariaDB
//	                         has a sql_mode that makes others NULL
//	{share}                  the end of a query that locks rows against writers only
//	{as present}             the alias of a table in an insert, for the following
//	{or KEY}                 the start of assignments if the key exists
//	{leave COLUMN}           the end of an insert that keeps an existing row
//	{old COLUMN}             the column of the existing row
//	{new COLUMN}             the column of the inserted row
//	{name N} {id N}          types of columns: a text of N bytes compared by its bytes,
//	                         of which PostgreSQL bounds the second one
//	{string N} {word N}      a text of N bytes, compared by its bytes on MariaDB, and one
//	                         of ASCII
//	{bytes} {text}           any bytes, and a text
//	{time} {engine}          the type of times, and the end of a table
//
// Nothing is replaced within quotes.
func (t Tables) Text(template string) string {
	write := func() string {
		w := writer{tables: t, maria: t.Maria()}
		w.write(template)
		return w.text.String()
	}
	if len(t.defined) > 0 || len(template) > maxTemplate {
		return write()
	}
	return t.names.text(template, write)
}

// names are quoted names by the words of a layout, and a cache of texts by template.
type names struct {
	words map[string]string

	mu    sync.Mutex
	texts map[string]string // by template; nil disables the cache
}

// The cache has at most maxTexts texts, of templates of at most maxTemplate bytes: some
// have a parameter for each row.
const (
	maxTexts    = 200
	maxTemplate = 4 << 10
)

func (n *names) text(template string, write func() string) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	text, ok := n.texts[template]
	if !ok {
		text = write()
		if len(n.texts) >= maxTexts {
			clear(n.texts)
		}
		if n.texts != nil {
			n.texts[template] = text
		}
	}
	return text
}

// quote adds the names with the suffixes.
func (n *names) quote(base where, suffixes map[string]string) (err error) {
	for _, word := range slices.Sorted(maps.Keys(suffixes)) {
		if n.words[word], err = Identifier(base.dialect, base.name, suffixes[word]); err != nil {
			return err
		}
	}
	return nil
}

// writer writes one statement.
type writer struct {
	tables     Tables
	maria      bool
	text       strings.Builder
	parameters int
}

func (w *writer) write(template string) {
	for template != "" {
		i := strings.IndexAny(template, "?{'\"`")
		if i < 0 {
			w.text.WriteString(template)
			return
		}
		w.text.WriteString(template[:i])
		length := 1
		switch c := template[i]; c {
		case '?':
			w.parameter()
		case '{':
			length = braced(template[i:])
			w.word(template[i : i+length])
		default:
			if end := strings.IndexByte(template[i+1:], c); end >= 0 {
				length = end + 2
			}
			w.text.WriteString(template[i : i+length])
		}
		template = template[i+length:]
	}
}

func (w *writer) parameter() {
	w.parameters++
	if w.maria {
		w.text.WriteByte('?')
		return
	}
	w.text.WriteString("$" + strconv.Itoa(w.parameters))
}

// braced returns the length of the text in braces at the start of s.
func braced(s string) int {
	depth := 0
	for i, c := range s {
		switch c {
		case '{':
			depth++
		case '}':
			if depth--; depth == 0 {
				return i + 1
			}
		}
	}
	return len(s)
}

// word writes the text of a word in braces. It leaves an unknown word unchanged, which
// the database then rejects.
func (w *writer) word(braced string) {
	word := strings.Trim(braced, "{}")
	for _, words := range []map[string]string{w.tables.defined, w.tables.names.words} {
		if name, ok := words[word]; ok {
			w.text.WriteString(name)
			return
		}
	}
	verb, what := word, ""
	if i := strings.IndexAny(braced, " \n"); i > 0 {
		verb, what = braced[1:i], braced[i+1:len(braced)-1]
	}
	postgres, maria, ok := dialects(verb, what)
	switch {
	case !ok:
		w.text.WriteString(braced)
	case w.maria:
		w.write(maria)
	default:
		w.write(postgres)
	}
}

// dialects returns the text of a word in both databases.
func dialects(verb, what string) (postgres, maria string, ok bool) {
	switch verb {
	case "pg":
		return what, ``, true
	case "maria":
		return ``, what, true
	case "now":
		return `clock_timestamp()`, `utc_timestamp(6)`, true
	case "start":
		return `statement_timestamp()`, `utc_timestamp(6)`, true
	case "span":
		return `?::bigint * interval '1 microsecond'`, `interval ? microsecond`, true
	case "micros":
		what = moment(what)
		return `(extract(epoch from ` + what + `) * 1000000)::bigint`, `timestampdiff(microsecond, '1970-01-01', ` + what + `)`, true
	case "millis":
		what = moment(what)
		return `(extract(epoch from ` + what + `) * 1000)::bigint`, `(timestampdiff(microsecond, '1970-01-01', ` + what + `) div 1000)`, true
	case "?":
		return `?`, `coalesce(?, x'')`, true
	case "empty":
		return `''`, `x''`, true
	case "share":
		return `for share`, `lock in share mode`, true
	case "as":
		return `as ` + what, ``, true
	case "or":
		return `on conflict (` + what + `) do update set`, `on duplicate key update`, true
	case "leave":
		return `on conflict (` + what + `) do nothing`, `on duplicate key update ` + what + ` = values(` + what + `)`, true
	case "old":
		return `present.` + what, what, true
	case "new":
		return `excluded.` + what, `values(` + what + `)`, true
	}
	return types(verb, what)
}

// moment returns a column, or the word for now or start.
func moment(what string) string {
	if what == "now" || what == "start" {
		return "{" + what + "}"
	}
	return what
}

// types returns the type of a column in both databases.
func types(verb, what string) (postgres, maria string, ok bool) {
	switch verb {
	case "name":
		return `text collate "C"`, `varbinary(` + what + `)`, true
	case "string":
		return `text`, `varbinary(` + what + `)`, true
	case "id":
		return `varchar(` + what + `) collate "C"`, `varbinary(` + what + `)`, true
	case "word":
		return `text`, `varchar(` + what + `) character set ascii`, true
	case "bytes":
		return `bytea`, `longblob`, true
	case "text":
		return `text`, `longtext`, true
	case "time":
		return `timestamptz`, `datetime(6)`, true
	case "engine":
		return ``, ` engine = InnoDB default charset = utf8mb4`, true
	}
	return ``, ``, false
}
