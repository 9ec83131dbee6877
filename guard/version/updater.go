package version

import (
	"cmp"
	"context"
	crand "crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/observe"
)

// DefaultAttempts is how often an update is attempted if Options do not say.
const DefaultAttempts = 4

// Options of an [Updater] and of a [Store]; nil and the zero value work.
type Options struct {
	// Attempts is how often an update is attempted before it is given up: three to
	// five are enough where conflicts are rare, and more do not help where they are
	// not. 0 means [DefaultAttempts].
	Attempts int
	// First bounds the pause after the first attempt; the bound doubles with each,
	// up to Max. A pause is a random part of its bound, an eighth at least. 0 means
	// 10 ms and 1 s.
	First, Max time.Duration
	// HandOff takes an update over when its last attempt has met a conflict too:
	// what it returns is returned. It may put the work into a queue with one
	// consumer for each entity, or do it under a lock. nil returns the error.
	HandOff func(ctx context.Context, err *ConflictError) error
	// Hooks receive what happens; nil logs failures, see package observe. [Stats]
	// counts them.
	Hooks *observe.Version
}

// validate completes o, or says what is impossible.
func (o *Options) validate() (Options, error) {
	var c Options
	if o != nil {
		c = *o
	}
	if c.Attempts < 0 || c.First < 0 || c.Max < 0 {
		return c, bug("make updater", "", errors.New("a negative number of Attempts, or a negative pause"))
	}
	c.Attempts = cmp.Or(c.Attempts, DefaultAttempts)
	c.First, c.Max = cmp.Or(c.First, 10*time.Millisecond), cmp.Or(c.Max, time.Second)
	c.Hooks = c.Hooks.WithDefaults()
	return c, nil
}

// An Updater attempts optimistic updates, a few times and with pauses between.
// It is safe for concurrent use, and one serves all entities.
type Updater struct {
	options Options

	mu     sync.Mutex
	random *rand.Rand
}

// NewUpdater makes an updater. It fails, with an error of kind Bug, if the options
// are impossible.
func NewUpdater(o *Options) (*Updater, error) {
	options, err := o.validate()
	if err != nil {
		return nil, err
	}
	var seed [16]byte
	_, _ = crand.Read(seed[:]) // it never fails
	source := rand.NewPCG(binary.LittleEndian.Uint64(seed[:8]), binary.LittleEndian.Uint64(seed[8:]))
	return &Updater{options: options, random: rand.New(source)}, nil
}

// update attempts until it works, ends in an error that is not worth it to attempt
// again, or was attempted often enough.
func (u *Updater) update(ctx context.Context, name string, worth func(error) bool, attempt func() error) error {
	if u == nil {
		return bug("update", name, errors.New("there is no Updater: make one with NewUpdater"))
	}
	for n := 1; ; n++ {
		err := attempt()
		conflict := conflicted(err)
		if tell := u.options.Hooks.Attempted; tell != nil {
			tell(observe.VersionAttempted{Name: name, Attempt: n, Conflict: conflict, Err: err})
		}
		switch {
		case err == nil || !worth(err):
			return err
		case n >= u.options.Attempts && conflict:
			return u.exhausted(ctx, &ConflictError{Name: name, Attempts: n, Err: err})
		case n >= u.options.Attempts:
			return err
		}
		delay := u.delay(n)
		if tell := u.options.Hooks.Retrying; tell != nil {
			tell(observe.VersionRetrying{Name: name, Attempt: n, Delay: delay, Err: err})
		}
		if !pause(ctx, delay) {
			return fmt.Errorf("%w; then %w", err, context.Cause(ctx))
		}
	}
}

func (u *Updater) exhausted(ctx context.Context, err *ConflictError) error {
	if tell := u.options.Hooks.Exhausted; tell != nil {
		tell(observe.VersionExhausted{Name: err.Name, Attempts: err.Attempts, HandedOff: u.options.HandOff != nil})
	}
	if u.options.HandOff == nil {
		return err
	}
	return u.options.HandOff(ctx, err)
}

// persist repeats a request that converges while it is Retryable or Uncertain.
// doubt says that one of them had no answer.
func (u *Updater) persist(ctx context.Context, request func() error) (doubt bool, err error) {
	for n := 1; ; n++ {
		err := request()
		kind := interlock.Kind(err)
		if err == nil || kind != interlock.Retryable && kind != interlock.Uncertain {
			return doubt, err
		}
		doubt = doubt || kind == interlock.Uncertain
		if n >= u.options.Attempts {
			return doubt, err
		}
		if !pause(ctx, u.delay(n)) {
			return doubt, fmt.Errorf("%w; then %w", err, context.Cause(ctx))
		}
	}
}

// delay is the pause after n attempts.
func (u *Updater) delay(n int) time.Duration {
	u.mu.Lock()
	defer u.mu.Unlock()
	return backoff.Policy{First: u.options.First, Max: u.options.Max}.Delay(n, u.random.Float64())
}

// pause is false if ctx ends first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}
