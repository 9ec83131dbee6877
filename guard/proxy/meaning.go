package proxy

import "net/http"

// An Outcome is what the status of an answer means for its operation.
type Outcome int

const (
	// Unknown means that the operation may have been done. It stays in doubt, and is sent again
	// only with [Options.Repeat].
	Unknown Outcome = iota
	// Final means that the status is the operation's result. It is recorded permanently, and
	// the operation is not sent again: [DoneError].
	Final
	// NotDone means that the other side refused the request before it did anything. The
	// operation may be sent again, even without a key. If an earlier attempt is in doubt, it
	// stays in doubt.
	NotDone
)

// DefaultOutcome returns the outcome of a status, unless [Options.Statuses] overrides it:
//
//	200–299                                  Final
//	401, 403, 425, 429                       NotDone
//	408, 409                                 Unknown
//	400–499, except those above              Final
//	every other, such as 3xx and 5xx         Unknown
//
// 401 and 403 can end when credentials change; 425 and 429 ask for another attempt. 408 and 409
// leave the outcome open. Gateways send 408 when the server behind them is slow, and APIs send
// 409 while an earlier request with the same key is in progress.
func DefaultOutcome(status int) Outcome {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusTooEarly, http.StatusTooManyRequests:
		return NotDone
	case http.StatusRequestTimeout, http.StatusConflict:
		return Unknown
	}
	if status >= 200 && status < 300 || status >= 400 && status < 500 {
		return Final
	}
	return Unknown
}

// meaning returns the outcome of status under o.
func (o *Options) meaning(status int) Outcome {
	if m, ok := o.Statuses[status]; ok {
		return m
	}
	return DefaultOutcome(status)
}
