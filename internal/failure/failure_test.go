package failure_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/failure"
)

// state is an error with an SQLSTATE.
type state string

func (s state) Error() string    { return string(s) }
func (s state) SQLState() string { return string(s) }

func TestAbout(t *testing.T) {
	plain := errors.New("plain")
	if err := failure.About("x", "y", plain); err != plain {
		t.Errorf("a foreign error: %v", err)
	}
	if err := failure.About("x", "y", nil); err != nil {
		t.Errorf("nil: %v", err)
	}
	below := fmt.Errorf("wrapped: %w", &interlock.Error{Op: "run statement", Driver: "postgres", Kind: interlock.Retryable, Err: state("40001")})
	err := failure.About("add", "box", below)
	var e *interlock.Error
	if !errors.As(err, &e) || e.Op != "add" || e.Name != "box" || e.Driver != "postgres" || e.Kind != interlock.Retryable || !errors.Is(err, state("40001")) {
		t.Errorf("%#v", err)
	}
}

func TestUncommitted(t *testing.T) {
	for kind, want := range map[interlock.ErrorKind]interlock.ErrorKind{
		interlock.Uncertain: interlock.Retryable, interlock.Retryable: interlock.Retryable,
		interlock.Definite: interlock.Definite, interlock.Bug: interlock.Bug,
	} {
		err := failure.Uncommitted(&interlock.Error{Op: "x", Driver: "postgres", Kind: kind, Err: state("y")})
		if interlock.Kind(err) != want || !errors.Is(err, state("y")) {
			t.Errorf("%v changed to %v", kind, err)
		}
	}
	if err := failure.Uncommitted(&interlock.Error{Op: "call", Kind: interlock.Uncertain, Err: state("y")}); interlock.Kind(err) != interlock.Uncertain {
		t.Errorf("an error of no driver changed to %v", err)
	}
	mine := errors.New("mine")
	err := failure.Uncommitted(errors.Join(mine, &interlock.Error{Op: "x", Driver: "postgres", Kind: interlock.Uncertain, Err: state("y")}))
	if interlock.Kind(err) != interlock.Retryable || errors.Is(err, interlock.ErrUncertain) || !errors.Is(err, mine) || !errors.Is(err, state("y")) {
		t.Errorf("a joined error changed to %v", err)
	}
	if plain := errors.New("plain"); failure.Uncommitted(plain) != plain || failure.Uncommitted(nil) != nil {
		t.Error("a foreign error was changed")
	}
}

func TestTable(t *testing.T) {
	for code, want := range map[string]bool{"42P01": true, "42S02": true, "42703": true, "42S22": true, "23502": true, "42501": true, "40001": false} {
		for _, part := range []string{"fence", ""} {
			was := &interlock.Error{Op: "x", Driver: "mysql table", Kind: interlock.Retryable, Err: state(code)}
			err := failure.Table("enter", "n", part, was)
			explained := strings.Contains(err.Error(), "create it with Create") || strings.Contains(err.Error(), "let its owner apply")
			if wanted := want && (part != "" || code == "42P01" || code == "42S02"); explained != wanted || explained == (interlock.Kind(err) == interlock.Retryable) {
				t.Errorf("%s, %q: %v", code, part, err)
			}
			if command := "interlock schema mysql --only fence"; strings.Contains(err.Error(), command) != (want && part != "") || strings.Contains(err.Error(), "--grant-to") != (code == "42501" && part != "") {
				t.Errorf("%s, %q: %v", code, part, err)
			}
			if again := failure.Table("x", "y", part, err); explained && again != err {
				t.Errorf("%s, %q: explained twice: %v", code, part, again)
			}
		}
	}
	unknown := &interlock.Error{Op: "x", Driver: "postgres", Kind: interlock.Uncertain, Err: state("42501")}
	if err := failure.Table("enter", "n", "fence", unknown); interlock.Kind(err) != interlock.Uncertain {
		t.Error(err)
	}
	if failure.Table("x", "y", "fence", nil) != nil {
		t.Error("nil")
	}
}

func TestBug(t *testing.T) {
	if err := failure.Bug("x", "y", "why %w", interlock.ErrName); interlock.Kind(err) != interlock.Bug || !errors.Is(err, interlock.ErrName) {
		t.Error(err)
	}
}
