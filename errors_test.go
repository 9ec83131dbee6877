package interlock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"testing"
)

func TestKind(t *testing.T) {
	for _, c := range []struct {
		err  error
		want ErrorKind
	}{
		{nil, Definite},
		{io.EOF, Uncertain},
		{fmt.Errorf("wrapped: %w", io.EOF), Uncertain},
		{ErrUncertain, Uncertain},
		{context.Canceled, Definite},
		{&url.Error{Op: "Post", Err: context.Canceled}, Uncertain},
		{fmt.Errorf("post: %w", ErrExpired), Uncertain},
		{ErrReentered, Bug},
		{ErrClosed, Bug},
		{ErrName, Bug},
		{ErrLost, Definite},
		{&HeldError{}, Retryable},
		{&StaleTokenError{}, Definite},
		{&UnmetError{}, Definite},
		{&Error{Kind: Retryable, Err: io.EOF}, Retryable},
		{fmt.Errorf("wrapped: %w", &Error{Kind: Bug, Err: io.EOF}), Bug},
		{errors.Join(io.EOF, &Error{Kind: Retryable, Err: io.EOF}), Retryable},
	} {
		if got := Kind(c.err); got != c.want {
			t.Errorf("Kind(%v) = %v, want %v", c.err, got, c.want)
		}
	}
}

func TestErrorsAnswerToTheirSentinelsAndKeepTheirCause(t *testing.T) {
	lost := &Error{Op: "acquire", Driver: "redis", Name: "a", Kind: Uncertain, Err: io.ErrUnexpectedEOF}
	if !errors.Is(lost, ErrUncertain) || !errors.Is(lost, io.ErrUnexpectedEOF) {
		t.Error("a lost reply is ErrUncertain with the native error behind it")
	}
	if errors.Is(&Error{Kind: Definite, Err: io.EOF}, ErrUncertain) {
		t.Error("a definite failure is not ErrUncertain")
	}
	for err, sentinel := range map[error]error{
		&HeldError{}: ErrHeld, &StaleTokenError{}: ErrStaleToken, &UnmetError{}: ErrUnmet,
	} {
		if !errors.Is(err, sentinel) {
			t.Errorf("%T is not %v", err, sentinel)
		}
	}
}

func TestMessages(t *testing.T) {
	for err, want := range map[error]string{
		&Error{Op: "acquire", Driver: "redis", Name: "a\nb", Kind: Definite, Err: io.EOF}: `redis: acquire "a\nb": EOF`,
		&Error{Op: "lead", Name: "a", Kind: Uncertain, Err: ErrLost}:                      `lead "a": outcome unknown: claim lost: the backend no longer names this process as the holder`,
		&Error{Op: "acquire", Driver: "etcd", Name: "a", Kind: Uncertain, Err: io.EOF}:    `etcd: acquire "a": outcome unknown, repeating is safe: EOF`,
		&Error{Op: "parse token", Err: io.EOF, Kind: Bug}:                                 `parse token: EOF`,
		&HeldError{Name: "a", Owner: "host:1"}:                                            `"a" is held by host:1`,
		&HeldError{Name: "a"}:                                                             `"a" is held by another process`,
		&StaleTokenError{Resource: "a", Seen: 9, Got: 8}:                                  `stale token for "a": got 8, but 9 has entered`,
		&UnmetError{Driver: "x", Unmet: []string{"one", "two"}}:                           `x does not meet what is required: one; two`,
	} {
		if err.Error() != want {
			t.Errorf("%s\nwant\n%s", err, want)
		}
	}
	for kind, want := range map[ErrorKind]string{Uncertain: "uncertain", Definite: "definite", Retryable: "retryable", Bug: "bug"} {
		if kind.String() != want {
			t.Errorf("%d is %q", kind, kind)
		}
	}
}
