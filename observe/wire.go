package observe

import (
	"log/slog"
	"time"

	"github.com/interlock-dev/interlock"
)

// Wire receives the results of a service's token checks. Every hook may be nil. Hooks must
// return at once.
type Wire struct {
	// Log receives failures whose hook is nil: nil means slog.Default, [Silent] none.
	Log *slog.Logger

	Admitted func(WireAdmitted)
	Refused  func(WireRefused)
}

// WireAdmitted reports that a request was admitted. A guard may still reject its token.
type WireAdmitted struct {
	Resource  string
	Owner     string
	Token     interlock.Token
	Remaining time.Duration // time for the request
}

// WireRefused reports that a request, or a later message of a stream, was refused before its
// handler ran. Without a valid token, only Reason and Err are set.
type WireRefused struct {
	Resource string
	Owner    string
	Token    interlock.Token
	Reason   string // a reason of package guard/wire
	Err      error
}

// Proxy receives the events of a guarding proxy's calls to a resource that cannot check
// tokens. Every hook may be nil. Hooks must return at once.
type Proxy struct {
	// Log receives failures whose hook is nil: nil means slog.Default, [Silent] none.
	Log *slog.Logger

	Sent    func(ProxySent)
	Refused func(ProxyRefused)
}

// ProxySent reports that a call was sent, or may have been.
type ProxySent struct {
	Resource  string
	Operation string
	Token     interlock.Token
	Waited    time.Duration // for its turn, and to enter
	Took      time.Duration
	Status    int   // of the answer; 0 if there is none
	Err       error // why the outcome is not known, or was not recorded; nil if it was
}

// ProxyRefused reports that a call was not sent.
type ProxyRefused struct {
	Resource  string
	Operation string
	Token     interlock.Token
	Waited    time.Duration
	Err       error
}
