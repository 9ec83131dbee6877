package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/failure"
)

const fail = failure.Driver(driverName)

var (
	errSlow         = errors.New("zookeeper did not answer in time")
	errNotConnected = errors.New("no connection to zookeeper")
	errTimeRanOut   = errors.New("no renewal was confirmed in time")
	errShorter      = errors.New("a server granted less session time than before")
)

// ask sends one request of the session's client. It waits for the answer until ctx ends, and at
// most for the bound of one request. The client does not support contexts, so the request runs in
// a task of the driver. The task ends with the answer, with the connection, or at the latest with
// the session.
//
// The client never repeats a request. While there is no connection ask sends nothing: the
// client would queue the request and send it later.
func ask[T any](ctx context.Context, s *session, op, name string, request func(*zk.Conn) (T, error)) (T, error) {
	type reply struct {
		value T
		err   error
	}
	var none T
	replies := make(chan reply, 1)
	if err := s.maySend(); err != nil {
		return none, fail.New(op, name, interlock.Retryable, err)
	}
	if ctx.Err() != nil {
		return none, notSent(ctx, op, name)
	}
	task := func() {
		value, err := request(s.conn)
		replies <- reply{value, err}
	}
	if !s.d.start(task) {
		return none, fail.Closed(op, name)
	}
	bound := time.NewTimer(s.pace.request)
	defer bound.Stop()
	select {
	case r := <-replies:
		if r.err != nil {
			return none, s.failed(op, name, r.err)
		}
		return r.value, nil
	case <-bound.C:
		return none, fail.New(op, name, interlock.Uncertain, errSlow)
	case <-ctx.Done():
		return none, fail.Unanswered(ctx, op, name)
	}
}

func (s *session) maySend() error {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	switch {
	case s.ended:
		return interlock.ErrSessionEnded
	case !s.connected:
		return errNotConnected
	}
	return nil
}

// failed wraps the error of a request that was sent.
func (s *session) failed(op, name string, err error) error {
	if errors.Is(err, zk.ErrSessionExpired) {
		s.end(interlock.ErrSessionEnded)
		err = fmt.Errorf("%w (%w)", interlock.ErrSessionEnded, err)
	}
	return failed(op, name, err)
}

func failed(op, name string, err error) error {
	return fail.New(op, name, kindOf(err), err)
}

// The errors of the client for refusals that it does not know: their codes. The servers do not execute
// a request beyond a quota, nor one that has waited for too long (throttledOpWaitTime).
const (
	quotaExceeded = "unknown error: -125"
	throttled     = "unknown error: -127"
)

// kindOf classifies an error of the client. A refused request had no effect; without a server,
// the request was not sent.
func kindOf(err error) interlock.ErrorKind {
	for _, refused := range []error{zk.ErrNoNode, zk.ErrNoAuth, zk.ErrBadVersion, zk.ErrNoChildrenForEphemerals,
		zk.ErrNodeExists, zk.ErrNotEmpty, zk.ErrInvalidACL, zk.ErrInvalidFlags, zk.ErrAuthFailed,
		zk.ErrBadArguments, zk.ErrInvalidPath} {
		if errors.Is(err, refused) {
			return interlock.Definite
		}
	}
	for _, never := range []error{zk.ErrNoServer, zk.ErrSessionExpired, zk.ErrSessionMoved} {
		if errors.Is(err, never) {
			return interlock.Retryable
		}
	}
	switch err.Error() {
	case quotaExceeded:
		return interlock.Definite
	case throttled:
		return interlock.Retryable
	}
	return interlock.Uncertain
}

// harmless makes an unknown outcome Retryable, for a request that only reads, or comes before the
// caller's own: it changes nothing that the caller asked for.
func harmless(err error) error {
	var e *interlock.Error
	if interlock.Kind(err) != interlock.Uncertain || !errors.As(err, &e) {
		return err
	}
	return fail.New(e.Op, e.Name, interlock.Retryable, e.Err)
}

// again returns the error that the place in the queue is lost, or was never taken.
func again(name string, cause error) error {
	return fail.New(opAcquire, name, interlock.Retryable, cause)
}

// notSent wraps the end of ctx before anything was sent. It is Retryable if ctx ended by a
// bound of the driver.
func notSent(ctx context.Context, op, name string) error {
	kind, cause := interlock.Definite, context.Cause(ctx)
	if errors.Is(cause, errSlow) {
		kind = interlock.Retryable
	}
	return fail.New(op, name, kind, cause)
}

// sync makes our server catch up with its leader. It writes nothing, so it suits calls that only
// show state.
func (s *session) sync(ctx context.Context, op, name string) error {
	_, err := ask(ctx, s, op, name, func(c *zk.Conn) (string, error) { return c.Sync(s.d.layout.root) })
	return err
}

// confirm sends a transaction that changes nothing. It needs a majority, and is refused if the
// session has ended. A former leader that has not noticed its loss still answers reads and
// syncs. A later read is at least as new as this call.
func (s *session) confirm(ctx context.Context, op, name string) error {
	_, err := ask(ctx, s, op, name, func(c *zk.Conn) ([]zk.MultiResponse, error) {
		return c.Multi(&zk.CheckVersionRequest{Path: s.d.layout.base(), Version: -1})
	})
	if errors.Is(err, zk.ErrNoNode) {
		return nil // a majority has agreed on that
	}
	return err
}

// children lists the children of a node; none if there is no node.
func (s *session) children(ctx context.Context, op, name, path string) ([]string, error) {
	list, err := ask(ctx, s, op, name, func(c *zk.Conn) ([]string, error) {
		list, _, err := c.Children(path)
		return list, err
	})
	if errors.Is(err, zk.ErrNoNode) {
		return nil, nil
	}
	return list, err
}

// remove deletes a node. A missing node is no error.
func (s *session) remove(ctx context.Context, op, name, path string) error {
	_, err := ask(ctx, s, op, name, func(c *zk.Conn) (struct{}, error) { return struct{}{}, c.Delete(path, -1) })
	if errors.Is(err, zk.ErrNoNode) {
		return nil
	}
	return err
}

// found is a node as it was read.
type found struct {
	data   []byte
	stat   *zk.Stat        // nil if there is none
	events <-chan zk.Event // if a watch was set
}

// get reads a node; nil if there is none.
func (s *session) get(ctx context.Context, op, name, path string) (*found, error) {
	return s.read(ctx, op, name, func(c *zk.Conn) (*found, error) {
		data, stat, err := c.Get(path)
		return &found{data: data, stat: stat}, err
	})
}

// watch is get, and watches the node unless there is none. A second watch would stay in the client until the
// node changes.
func (s *session) watch(ctx context.Context, op, name, path string) (*found, error) {
	return s.read(ctx, op, name, func(c *zk.Conn) (*found, error) {
		data, stat, _, err := c.GetW(path)
		return &found{data: data, stat: stat}, err
	})
}

func (s *session) read(ctx context.Context, op, name string, request func(*zk.Conn) (*found, error)) (*found, error) {
	f, err := ask(ctx, s, op, name, request)
	if errors.Is(err, zk.ErrNoNode) {
		return nil, nil
	}
	return f, err
}
