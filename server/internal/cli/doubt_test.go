package cli

import (
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/server/internal/backend"
	"github.com/interlock-dev/interlock/txn/journal"
)

// A repair whose answer is lost may be done, and the operator learns that.
func TestARepairWithoutAnAnswerIsInDoubt(t *testing.T) {
	t.Parallel()
	a := newApp("interlock", io.Discard, io.Discard)
	a.backend, a.timeout, a.changes = "etcd://127.0.0.1:1", 200*time.Millisecond, true
	open := func(backend.Target, context.Context, string) (driver.Journal, func(), error) {
		return memory.NewJournal(), func() {}, nil
	}
	err := (&journalCommands{app: a}).on(t.Context(), open, true, func(ctx context.Context, _ *journal.Journal) error {
		<-ctx.Done()
		return &interlock.Error{Op: "append", Kind: interlock.Uncertain, Err: ctx.Err()}
	})
	if codeOf(err) != exitUnreachable || !strings.Contains(err.Error(), "the change may be done: look before you repeat it") {
		t.Errorf("exit code %d: %v", codeOf(err), err)
	}
}
