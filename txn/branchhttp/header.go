package branchhttp

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/txn/branch"
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

// HeaderInput with the value "other", in an answer that is neither 2xx, 409 nor 425, means
// [branch.ErrOtherInput]. A participant need not send it.
const HeaderInput = "Interlock-Input"

const otherInput = "other"

// The longest bodies of calls over HTTP, in bytes. An input can contain several outputs
// of earlier calls.
const (
	MaxInput = 4 << 20
	MaxBody  = 1 << 20 // an output
)

// A HeaderError reports an invalid header of a call. It is a Bug of the caller: the answer
// is 400, and nothing was done.
type HeaderError struct {
	Header string // the header's name
	Why    string
}

// Error returns the header's name and the fault.
func (e *HeaderError) Error() string { return "header " + e.Header + " " + e.Why }

// ErrorKind returns [interlock.Bug].
func (e *HeaderError) ErrorKind() interlock.ErrorKind { return interlock.Bug }

// FromRequest returns the call in r's headers. It is strict, because a misread call would be done
// twice or refused: each header occurs once and is not empty, and each number has one form. An
// error is a [*HeaderError].
func FromRequest(r *http.Request) (branch.Call, error) {
	h := headers{from: r.Header}
	c := branch.Call{
		Transaction: h.name(HeaderTransaction, driver.MaxTransaction, true),
		Branch:      h.name(HeaderBranch, maxName, true),
		Step:        h.name(HeaderStep, maxName, false),
		Operation:   branch.Operation(h.name(HeaderOperation, maxName, true)),
		Attempt:     int(h.number(HeaderAttempt, true)),
		Epoch:       interlock.Token(h.number(HeaderEpoch, false)),
		Begun:       h.time(HeaderBegun, true),
		Deadline:    h.time(HeaderDeadline, false),
		Until:       h.time(HeaderUntil, false),
	}
	if h.err == nil && !known(c.Operation) {
		h.refuse(HeaderOperation, fmt.Sprintf("is %.40q, which is not an operation", c.Operation))
	}
	if h.err != nil {
		return branch.Call{}, h.err
	}
	return c, nil
}

// SetHeaders writes c into a request's headers, in place of an earlier call: the inverse of
// [FromRequest], for senders that do not use a [Caller]. If FromRequest would refuse c, the
// error is a [*HeaderError].
func SetHeaders(to http.Header, c branch.Call) error {
	values := make([]string, 0, 9) // of all headers together
	set := func(name, value string) {
		values = append(values, value)
		to[name] = values[len(values)-1 : len(values) : len(values)]
	}
	set(HeaderTransaction, url.PathEscape(c.Transaction))
	set(HeaderBranch, url.PathEscape(c.Branch))
	set(HeaderOperation, string(c.Operation))
	set(HeaderAttempt, strconv.Itoa(c.Attempt))
	set(HeaderBegun, strconv.FormatInt(c.Begun.UnixMilli(), 10))
	for _, optional := range []string{HeaderStep, HeaderEpoch, HeaderDeadline, HeaderUntil} {
		delete(to, optional)
	}
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

// maxName limits names other than the transaction's, in bytes before they are encoded.
const maxName = 255

// latest is the last time that a header can express: the end of year 9999.
const latest = 253402300799999

func known(o branch.Operation) bool {
	switch o {
	case branch.Do, branch.Undo, branch.Try, branch.Confirm, branch.Cancel, branch.Prepare, branch.Commit, branch.Rollback:
		return true
	}
	return false
}

// headers reads headers, and keeps the first error.
type headers struct {
	from http.Header
	err  error
}

func (h *headers) refuse(header, why string) {
	if h.err == nil {
		h.err = &HeaderError{header, why}
	}
}

// text returns a header's value, or "".
func (h *headers) text(header string, required bool) string {
	switch values := h.from.Values(header); {
	case len(values) > 1:
		h.refuse(header, "occurs more than once")
	case len(values) == 1 && values[0] == "":
		h.refuse(header, "is empty")
	case len(values) == 1:
		return values[0]
	case required:
		h.refuse(header, "is missing")
	}
	return ""
}

func (h *headers) name(header string, longest int, required bool) string {
	text := h.text(header, required)
	name, err := url.PathUnescape(text)
	switch {
	case err != nil:
		h.refuse(header, fmt.Sprintf("is not percent-encoded: %v", err))
	case len(name) > longest:
		h.refuse(header, fmt.Sprintf("has %d bytes, at most %d are allowed", len(name), longest))
	case driver.CheckText("", name, 0, longest) != nil:
		h.refuse(header, "is not UTF-8, or contains NUL")
	}
	return name
}

// number returns a number above 0 in its shortest form, or 0 without the header.
func (h *headers) number(header string, required bool) int64 {
	text := h.text(header, required)
	if text == "" {
		return 0
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n <= 0 || text[0] == '0' || text[0] == '+' || header == HeaderAttempt && n != int64(int32(n)) {
		h.refuse(header, fmt.Sprintf("is %.40q, not a number above 0", text))
	}
	return n
}

func (h *headers) time(header string, required bool) time.Time {
	ms := h.number(header, required)
	if ms > latest {
		h.refuse(header, "is after the year 9999")
	}
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms)
}

// Redact returns an address for errors, logs and lists: without its user information, query and
// fragment, which can contain secrets.
func Redact(address string) string { return failure.RedactURL(address) }

var errNotJSON = errors.New("the output is not JSON in UTF-8: answer JSON, or 2xx without a body")

// isJSON reports whether parsers of any language accept a text; json.Valid does not check UTF-8.
func isJSON(text []byte) bool { return utf8.Valid(text) && json.Valid(text) }
