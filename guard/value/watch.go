package value

import (
	"bytes"
	"context"
	"iter"

	"github.com/interlock-dev/interlock/driver"
)

// Watch yields the current value of name, or the zero Value if nothing was ever written. Then
// it yields each later value, until the caller leaves the loop or ctx ends. Its goroutine has
// ended by then. Values that were replaced while the loop's body ran may be skipped; the last
// value never is. Tokens never decrease.
//
// If a watch is interrupted, it is opened again, without a limit of attempts, and reported to
// Options.Interrupted. An error that is neither Retryable nor Uncertain, or the end of ctx,
// ends the loop; the last iteration has that error.
func (s *Store) Watch(ctx context.Context, name string) iter.Seq2[driver.Value, error] {
	return func(yield func(driver.Value, error) bool) {
		if err := checkName("watch value", name); err != nil {
			yield(driver.Value{}, err)
			return
		}
		ctx, cancel := context.WithCancel(ctx)
		latest := make(slot, 1)
		over := make(chan error, 1)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			over <- s.follow(ctx, name, latest)
		}()
		defer func() {
			cancel()
			<-ended
		}()
		pull(latest, over, yield)
	}
}

// pull yields values as they arrive, and the error last.
func pull(latest slot, over <-chan error, yield func(driver.Value, error) bool) {
	for {
		select {
		case v := <-latest:
			if !yield(v, nil) {
				return
			}
		case err := <-over:
			select {
			case v := <-latest:
				if !yield(v, nil) {
					return
				}
			default:
			}
			yield(driver.Value{}, err)
			return
		}
	}
}

// follow watches until an error must not be retried, and returns that error.
func (s *Store) follow(ctx context.Context, name string, latest slot) error {
	var last *driver.Value
	for failures := 0; ; {
		watched := false
		err := s.values.Watch(ctx, name, func(v driver.Value) {
			watched = true
			if isNews(last, v) {
				last = &v
				latest.put(v)
			}
		})
		if ctx.Err() != nil || !repeatable(err) {
			return err
		}
		if watched {
			failures = 0
		}
		failures++
		if s.options.Interrupted != nil {
			s.options.Interrupted(name, err)
		}
		retries.Wait(ctx, failures)
	}
}

// isNews returns false for a lower token, which a store restored from a backup may have. It
// also returns false for a value that was seen already, with which a reopened watch begins.
func isNews(last *driver.Value, v driver.Value) bool {
	if last == nil || v.Token > last.Token {
		return true
	}
	same := v.Written.Equal(last.Written) && v.Source == last.Source && bytes.Equal(v.Data, last.Data)
	return v.Token == last.Token && !same
}

// slot holds the latest value that was not taken yet. It has one writer.
type slot chan driver.Value

func (s slot) put(v driver.Value) {
	select {
	case <-s:
	default:
	}
	s <- v
}
