package driver_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver"
)

func TestWithCause(t *testing.T) {
	errSlow, native := errors.New("the server did not answer in time"), errors.New("refused")
	ended := func(cause error) context.Context {
		ctx, cancel := context.WithCancelCause(context.Background())
		cancel(cause)
		return ctx
	}
	late, cancel := context.WithDeadline(context.Background(), time.Unix(1, 0))
	defer cancel()
	for what, tt := range map[string]struct {
		ctx      context.Context
		err      error
		deadline bool // it matches the caller's
		matches  error
	}{
		"own bound":               {ended(errSlow), fmt.Errorf("rpc: %w", context.DeadlineExceeded), false, errSlow},
		"own bound, other error":  {ended(errSlow), native, false, native},
		"the caller's":            {late, context.DeadlineExceeded, true, context.DeadlineExceeded},
		"the caller's, wrapped":   {late, fmt.Errorf("rpc: %w", context.DeadlineExceeded), true, context.DeadlineExceeded},
		"a bound of the client":   {context.Background(), fmt.Errorf("rpc: %w", context.DeadlineExceeded), false, nil},
		"no context has anything": {context.Background(), native, false, native},
	} {
		err := driver.WithCause(tt.ctx, tt.err)
		if errors.Is(err, context.DeadlineExceeded) != tt.deadline || tt.matches != nil && !errors.Is(err, tt.matches) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := driver.WithCause(ended(errSlow), fmt.Errorf("rpc: %w", context.DeadlineExceeded)); !strings.Contains(err.Error(), "rpc: ") {
		t.Errorf("the client's words are lost: %v", err)
	}
}

func TestNeverSent(t *testing.T) {
	_, err := net.DialTimeout("tcp", "127.0.0.1:1", time.Second)
	if !driver.NeverSent(fmt.Errorf("connect: %w", err)) {
		t.Errorf("%v was sent", err)
	}
	if driver.NeverSent(&net.OpError{Op: "read", Err: errors.New("reset")}) {
		t.Error("a lost answer was never sent")
	}
}
