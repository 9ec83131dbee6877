package observe

import (
	"log/slog"

	"github.com/interlock-dev/interlock"
)

// Fence receives what a guard of a key-value store notices. Every hook may be nil.
// Hooks must return at once; several calls may run them at the same time.
type Fence struct {
	// Log receives what a nil hook would; nil means slog.Default, [Silent] nobody.
	Log *slog.Logger

	Bypassed func(FenceBypassed)
}

// FenceBypassed: a guarded write replaced a value that was written without the guard
// after the resource was last entered.
type FenceBypassed struct {
	Resource string
	Key      string
	Owner    string          // who made the guarded write
	Token    interlock.Token // of that write
}
