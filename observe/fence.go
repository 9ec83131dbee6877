package observe

import (
	"log/slog"

	"github.com/interlock-dev/interlock"
)

// Fence receives what a guard of a key-value store detects. Every hook may be nil. Hooks must
// return at once; several calls may run them concurrently.
type Fence struct {
	// Log receives what a nil hook would; nil means slog.Default; [Silent] disables logging.
	Log *slog.Logger

	Bypassed func(FenceBypassed)
}

// FenceBypassed reports that a guarded write replaced a value that was written without the
// guard after the last Enter of the resource.
type FenceBypassed struct {
	Resource string
	Key      string
	Owner    string          // who made the guarded write
	Token    interlock.Token // of that write
}
