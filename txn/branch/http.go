package branch

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/interlock-dev/interlock"
)

// The headers of a call over HTTP. Names are percent-encoded, as [url.PathEscape]
// does it. Times are milliseconds since 1970.
const (
	HeaderTransaction = "Interlock-Transaction"
	HeaderBranch      = "Interlock-Branch"
	HeaderStep        = "Interlock-Step" // only if there is one
	HeaderOperation   = "Interlock-Operation"
	HeaderAttempt     = "Interlock-Attempt"
	HeaderEpoch       = "Interlock-Epoch" // only if there is one
	HeaderBegun       = "Interlock-Begun"
	HeaderDeadline    = "Interlock-Deadline" // only if there is one
	HeaderUntil       = "Interlock-Until"    // only with a try
)

// HeaderInput of an answer that is neither 2xx, 409 nor 425 is [ErrOtherInput] if it has the
// value "other". A participant need not send it.
const HeaderInput = "Interlock-Input"

const otherInput = "other"

// The longest bodies of calls over HTTP, in bytes. An input can have several outputs of
// earlier calls in it.
const (
	MaxInput = 4 << 20
	MaxBody  = 1 << 20 // an output
)

// A HeaderError says what is wrong with a call that came by HTTP. It is a Bug of the
// caller's: the answer to it is 400, and nothing was done.
type HeaderError struct {
	Header string // the header's name
	Why    string
}

// Error names the header and says what is wrong with it.
func (e *HeaderError) Error() string { return "header " + e.Header + " " + e.Why }

// ErrorKind is Bug.
func (e *HeaderError) ErrorKind() interlock.ErrorKind { return interlock.Bug }

// FromRequest is the call that r's headers tell of. It is strict, because a call that
// was taken for another would be done twice or refused: each header comes once and means
// something, and numbers are written in one way. An error is a [*HeaderError].
func FromRequest(r *http.Request) (Call, error) {
	h := headers{from: r.Header}
	c := Call{
		Transaction: h.name(HeaderTransaction, maxTransaction, true),
		Branch:      h.name(HeaderBranch, maxName, true),
		Step:        h.name(HeaderStep, maxName, false),
		Operation:   Operation(h.name(HeaderOperation, maxName, true)),
		Attempt:     int(h.number(HeaderAttempt, true)),
		Epoch:       interlock.Token(h.number(HeaderEpoch, false)),
		Begun:       h.time(HeaderBegun, true),
		Deadline:    h.time(HeaderDeadline, false),
		Until:       h.time(HeaderUntil, false),
	}
	if h.err == nil && !c.Operation.known() {
		h.refuse(HeaderOperation, fmt.Sprintf("is %.40q, which no participant knows", c.Operation))
	}
	if h.err != nil {
		return Call{}, h.err
	}
	return c, nil
}

// SetHeaders is the inverse of [FromRequest], for who sends by other means than a
// [Caller]. A call that FromRequest would refuse is a [*HeaderError] here.
func (c Call) SetHeaders(to http.Header) error {
	set := func(name, value string) { to[name] = []string{value} }
	set(HeaderTransaction, url.PathEscape(c.Transaction))
	set(HeaderBranch, url.PathEscape(c.Branch))
	set(HeaderOperation, string(c.Operation))
	set(HeaderAttempt, strconv.Itoa(c.Attempt))
	set(HeaderBegun, strconv.FormatInt(c.Begun.UnixMilli(), 10))
	if c.Step != "" {
		set(HeaderStep, url.PathEscape(c.Step))
	}
	if c.Epoch != 0 {
		set(HeaderEpoch, strconv.FormatInt(int64(c.Epoch), 10))
	}
	if !c.Deadline.IsZero() {
		set(HeaderDeadline, strconv.FormatInt(c.Deadline.UnixMilli(), 10))
	}
	if !c.Until.IsZero() {
		set(HeaderUntil, strconv.FormatInt(c.Until.UnixMilli(), 10))
	}
	_, err := FromRequest(&http.Request{Header: to})
	return err
}

// Limits of names, in bytes, before they are encoded.
const (
	maxTransaction = 200 // driver.MaxTransaction
	maxName        = 255
)

// latest is the last time that a header can tell: year 9999.
const latest = 253402300799999

func (o Operation) known() bool {
	switch o {
	case Do, Undo, Try, Confirm, Cancel, Prepare, Commit, Rollback:
		return true
	}
	return false
}

// headers reads headers, and remembers the first thing that is wrong with them.
type headers struct {
	from http.Header
	err  error
}

func (h *headers) refuse(header, why string) {
	if h.err == nil {
		h.err = &HeaderError{header, why}
	}
}

// text is a header's value; empty if it is not there.
func (h *headers) text(header string, needed bool) string {
	switch values := h.from.Values(header); {
	case len(values) > 1:
		h.refuse(header, "comes more than once")
	case len(values) == 1 && values[0] == "":
		h.refuse(header, "is empty")
	case len(values) == 1:
		return values[0]
	case needed:
		h.refuse(header, "is missing")
	}
	return ""
}

func (h *headers) name(header string, longest int, needed bool) string {
	text := h.text(header, needed)
	name, err := url.PathUnescape(text)
	switch {
	case err != nil:
		h.refuse(header, fmt.Sprintf("is not percent-encoded: %v", err))
	case len(name) > longest:
		h.refuse(header, fmt.Sprintf("has %d bytes, at most %d are allowed", len(name), longest))
	case !utf8.ValidString(name) || strings.ContainsRune(name, 0):
		h.refuse(header, "is not UTF-8 without NUL")
	}
	return name
}

// number is one above 0, written as people do; 0 if it is not there.
func (h *headers) number(header string, needed bool) int64 {
	text := h.text(header, needed)
	if text == "" {
		return 0
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n <= 0 || strconv.FormatInt(n, 10) != text || header == HeaderAttempt && n != int64(int32(n)) {
		h.refuse(header, fmt.Sprintf("is %.40q, and not a number above 0", text))
	}
	return n
}

func (h *headers) time(header string, needed bool) time.Time {
	ms := h.number(header, needed)
	if ms > latest {
		h.refuse(header, "lies after the year 9999")
	}
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms)
}

var errNotJSON = errors.New("the output is not JSON: answer JSON, or 2xx without a body")
