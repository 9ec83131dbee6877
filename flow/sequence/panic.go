package sequence

import (
	"runtime/debug"

	"github.com/interlock-dev/interlock/flow/keyed"
)

// A PanicError is the panic of a handler for a held event, or of a Fetch. Effects outside of the store
// are unknown: it is Uncertain.
type PanicError = keyed.PanicError

// contain returns a panic of the function that defers it as an error.
func contain(key string, err *error) {
	if v := recover(); v != nil {
		*err = &PanicError{Key: key, Value: v, Stack: debug.Stack()}
	}
}
