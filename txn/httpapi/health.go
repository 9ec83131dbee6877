package httpapi

import (
	"context"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/txn/journal"
)

// health is the answer to /healthz and /readyz.
type health struct {
	Status string `json:"status"`
}

// readiness is whether the journal answers. It is asked once a second at most, however
// often somebody wants to know: the request needs no credential.
type readiness struct {
	mu    sync.Mutex
	asked time.Time
	err   error
}

func (r *readiness) check(ctx context.Context, j *journal.Journal) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Since(r.asked) < time.Second {
		return r.err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	r.err = nil
	if _, err := j.Heads(ctx, "", 1); err != nil { // which may say where it is
		r.err = &requestError{503, interlock.Retryable, "the journal does not answer"}
	}
	r.asked = time.Now()
	return r.err
}
