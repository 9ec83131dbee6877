package observe

import (
	"log/slog"
	"time"

	"github.com/interlock-dev/interlock"
)

// Wire receives what a service does with the tokens that requests carry. Every
// hook may be nil. Hooks must return at once.
type Wire struct {
	// Log receives the failures whose hook is nil. Nil means slog.Default; [Silent] disables
	// logging.
	Log *slog.Logger

	Admitted func(WireAdmitted)
	Refused  func(WireRefused)
}

// WireAdmitted: a request was let in. A guard may still refuse its token.
type WireAdmitted struct {
	Resource  string
	Owner     string
	Token     interlock.Token
	Remaining time.Duration // that it may be worked on
}

// WireRefused: a request, or a later message of a stream, was refused before
// anything saw it. Of a token that could not be read, or believed, there is only
// the reason.
type WireRefused struct {
	Resource string
	Owner    string
	Token    interlock.Token
	Reason   string // that of package guard/wire
	Err      error
}

// Proxy receives what a guarding proxy does with calls to a resource that cannot
// check tokens. Every hook may be nil. Hooks must return at once.
type Proxy struct {
	// Log receives the failures whose hook is nil. Nil means slog.Default; [Silent] disables
	// logging.
	Log *slog.Logger

	Sent    func(ProxySent)
	Refused func(ProxyRefused)
}

// ProxySent: a call was sent, or may have been.
type ProxySent struct {
	Resource  string
	Operation string
	Token     interlock.Token
	Waited    time.Duration // for its turn, and to enter
	Took      time.Duration
	Status    int   // of the answer; 0 if there is none
	Err       error // why the outcome is not known, or was not recorded; nil if it was
}

// ProxyRefused: a call was not sent.
type ProxyRefused struct {
	Resource  string
	Operation string
	Token     interlock.Token
	Waited    time.Duration
	Err       error
}
