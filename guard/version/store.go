package version

import (
	"context"
	crand "crypto/rand"
	"errors"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// Store keeps the newest state of each entity in a key-value store, which compares and writes
// in one step. It keeps states forever, including tombstones. It is safe for concurrent use.
type Store struct {
	versions driver.Versions
	updater  *Updater
}

// NewStore returns a Store on v, which a driver package provides. It does not block. If v is
// nil or the options are invalid, the error is of kind Bug.
func NewStore(v driver.Versions, o *Options) (*Store, error) {
	if v == nil {
		return nil, bug("make store", "", errors.New("driver.Versions are required"))
	}
	u, err := NewUpdater(o)
	if err != nil {
		return nil, err
	}
	return &Store{versions: v, updater: u}, nil
}

// Apply stores v as the state of entity if it is newer, and returns what is stored then. It
// repeats a request that failed or had no reply, which converges, with the attempts and delays
// of Options. After a request without a reply, it may return Applied for a state that another
// process applied too. It never does for one that no process applied. If no request had a reply,
// the error is Uncertain.
func (s *Store) Apply(ctx context.Context, entity string, v driver.Versioned) (o Outcome, stored driver.Versioned, err error) {
	const op = "apply state"
	if err := storable(op, entity, v); err != nil {
		return Stale, stored, err
	}
	doubt, err := s.updater.persist(ctx, func() (err error) {
		o, stored, err = s.versions.Apply(ctx, entity, v)
		return err
	})
	if err == nil && doubt && o == Duplicate {
		o = Applied
	}
	return o, stored, uncertainty(op, entity, doubt, err)
}

// Get returns the state of entity at some instant during the call; the zero Versioned means
// none. It retries as Apply does.
func (s *Store) Get(ctx context.Context, entity string) (v driver.Versioned, err error) {
	if err := validateEntity("get state", entity); err != nil {
		return v, err
	}
	_, err = s.updater.persist(ctx, func() error {
		v, err = s.versions.Get(ctx, entity)
		return err
	})
	return v, err
}

// Update reads the state of entity, calls change to compute the next one, and stores that if no
// other was stored meanwhile. Otherwise it retries after a delay. It ignores the Stamp that
// change returns: the next state has the next Version and a unique Tie. change runs once per
// attempt.
//
// So the updater issues the versions. If other producers issue versions too and Apply stores
// them, a state of theirs is Stale once an update has the same version.
//
// It returns nil if the state was stored. Otherwise:
//
//   - a [ConflictError], or the result of Options.HandOff: nothing was done
//   - a [TerminalError]: the state is terminal. change does not run then
//   - an Uncertain error: a request had no reply, and another process had written before the
//     next one. The update may have been done
//   - an error of change, unchanged, or of a request that failed at each attempt
func (s *Store) Update(ctx context.Context, entity string,
	change func(ctx context.Context, was driver.Versioned) (driver.Versioned, error)) error {
	const op = "update state"
	if err := validateEntity(op, entity); err != nil {
		return err
	}
	if change == nil {
		return bug(op, entity, errNoFunction)
	}
	return s.updater.update(ctx, entity, conflicting, func() error {
		was, err := s.Get(ctx, entity)
		if err != nil {
			return err
		}
		if was.Terminal {
			return &TerminalError{Name: entity, Stamp: was.Stamp}
		}
		next, err := change(ctx, was)
		if err != nil {
			return err
		}
		next.Stamp = Stamp{Version: was.Stamp.Version + 1, Tie: crand.Text()}
		return s.replace(ctx, entity, was.Stamp, next)
	})
}

func (s *Store) replace(ctx context.Context, entity string, old Stamp, next driver.Versioned) (err error) {
	const op = "update state"
	if err := storable(op, entity, next); err != nil {
		return err
	}
	var o Outcome
	var stored driver.Versioned
	doubt, err := s.updater.persist(ctx, func() (err error) {
		o, stored, err = s.versions.Replace(ctx, entity, old, next)
		return err
	})
	switch {
	case err != nil:
		return uncertainty(op, entity, doubt, err)
	case o == Applied || o == Duplicate:
		return nil
	case doubt:
		return problem(op, entity, interlock.Uncertain, errors.New("a request had no answer, and another writer has written since"))
	case o == Terminal:
		return &TerminalError{Name: entity, Stamp: stored.Stamp}
	}
	return ErrConflict
}

// storable returns an error for an argument that no store accepts.
func storable(op, entity string, v driver.Versioned) error {
	if err := validateEntity(op, entity); err != nil {
		return err
	}
	if err := v.Check(); err != nil {
		return bug(op, entity, err)
	}
	return nil
}

// uncertainty returns the error of a series of requests. If a request had no reply and none
// after it succeeded, the outcome is unknown, whatever the last error is.
func uncertainty(op, entity string, doubt bool, err error) error {
	if err == nil || !doubt || interlock.Kind(err) == interlock.Uncertain {
		return err
	}
	return problem(op, entity, interlock.Uncertain, err)
}
