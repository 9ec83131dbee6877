package driver

import (
	"context"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/interlock-dev/interlock"
)

// Breaker is an optional interface of a lock driver that takes a lock away from its holder. An
// operator uses it if the holder will not come back. It does not stop the holder's work: only a
// guard rejects the holder's later writes.
type Breaker interface {
	// Break ends the hold of b.Owner on b.Name and records b durably, in one atomic step. If
	// the backend cannot do both in one step, b is recorded first; the driver's package
	// documents that. The next grant has a higher token. The holder sees the break as a lost
	// lease.
	//
	// If b.Owner does not hold b.Name now, ok is false and nothing was done or recorded; the
	// operator must look again. After an Uncertain error the call may be repeated; ok is false
	// once the hold has ended.
	Break(ctx context.Context, b Break) (record BreakRecord, ok bool, err error)
	// Breaks returns at most limit records of name, or of every name if name is empty, newest
	// first. The driver defines how long it keeps records.
	Breaks(ctx context.Context, name string, limit int) ([]BreakRecord, error)
}

// Break is a request for a forced release.
type Break struct {
	Name   string
	Owner  string // the holder to remove, as Inspector shows it
	Reason string // for people; 1 to MaxName bytes
	By     string // the operator; 1 to MaxName bytes
}

// Validate checks all but the name, of which each driver has its own limits.
func (b Break) Validate() error {
	if b.Owner == "" {
		return errors.New("the owner is missing: it is the holder as Inspector shows it")
	}
	for _, text := range []struct{ what, text string }{{"reason", b.Reason}, {"author", b.By}} {
		if text.text == "" || len(text.text) > MaxName {
			return fmt.Errorf("the %s has %d bytes, 1 to %d are allowed", text.what, len(text.text), MaxName)
		}
	}
	return nil
}

// ValidateUTF8 checks what [Break.Validate] does, and that all texts are UTF-8.
func (b Break) ValidateUTF8() error {
	for _, text := range []string{b.Owner, b.Reason, b.By} {
		if !utf8.ValidString(text) {
			return fmt.Errorf("%q is not UTF-8", text)
		}
	}
	return b.Validate()
}

// A BreakRecord is the record of a forced release.
type BreakRecord struct {
	Break
	Token interlock.Token // of the ended hold; 0 if it had none
	At    time.Time       // by the backend's clock
}
