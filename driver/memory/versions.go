package memory

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// Versions keeps the newest state of each entity in memory. It is the executable
// specification of driver.Versions: each call is one step under a mutex. Use
// [NewVersions]. It is safe for concurrent use.
type Versions struct {
	mu     sync.Mutex
	states map[string]driver.Versioned
}

var _ driver.Versions = (*Versions)(nil)

// NewVersions returns an empty store.
func NewVersions() *Versions { return &Versions{states: map[string]driver.Versioned{}} }

// Apply stores a state that is newer than the stored one; see driver.Versions.
func (s *Versions) Apply(ctx context.Context, name string, v driver.Versioned) (driver.VersionOutcome, driver.Versioned, error) {
	return s.write(ctx, "apply state", name, v, v.Judge)
}

// Replace stores a state if the stored one has the stamp old; see driver.Versions.
func (s *Versions) Replace(ctx context.Context, name string, old driver.Stamp, v driver.Versioned) (driver.VersionOutcome, driver.Versioned, error) {
	const op = "replace state"
	if v.Stamp.Compare(old) <= 0 {
		return 0, driver.Versioned{}, fail.New(op, name, interlock.Bug, fmt.Errorf("%v is not newer than %v", v.Stamp, old))
	}
	return s.write(ctx, op, name, v, func(stored driver.Versioned) driver.VersionOutcome { return v.JudgeReplace(old, stored) })
}

func (s *Versions) write(ctx context.Context, op, name string, v driver.Versioned,
	judge func(stored driver.Versioned) driver.VersionOutcome) (driver.VersionOutcome, driver.Versioned, error) {
	if err := asking(ctx, op, name); err != nil {
		return 0, driver.Versioned{}, err
	}
	if err := v.Check(); err != nil {
		return 0, driver.Versioned{}, fail.New(op, name, interlock.Bug, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	outcome := judge(s.states[name])
	if outcome == driver.VersionApplied {
		v.Data, v.TerminalWins = slices.Clone(v.Data), false
		s.states[name] = v
	}
	return outcome, s.get(name), nil
}

// Get reads a state; see driver.Versions. The caller owns the data.
func (s *Versions) Get(ctx context.Context, name string) (driver.Versioned, error) {
	if err := asking(ctx, "get state", name); err != nil {
		return driver.Versioned{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.get(name), nil
}

// get copies the state. The caller holds the mutex.
func (s *Versions) get(name string) driver.Versioned {
	v := s.states[name]
	v.Data = slices.Clone(v.Data)
	return v
}
