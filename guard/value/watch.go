package value

import (
	"bytes"
	"context"
	"iter"

	"github.com/interlock-dev/interlock/driver"
)

// Watch yields the value of name as it is, the zero Value if nothing was ever
// written, and then each later one, until the loop is left or ctx ends. The
// goroutine behind it has ended then. A value that was replaced while the loop's
// body ran may be skipped, the last one never is; tokens never fall.
//
// A watch that is interrupted is opened again, for as long as it takes, with a
// word to Options.Interrupted. An error that cannot pass ends the loop: its last
// turn has the error, which is that of ctx if it has ended.
func (s *Store) Watch(ctx context.Context, name string) iter.Seq2[driver.Value, error] {
	return func(yield func(driver.Value, error) bool) {
		if err := named("watch value", name); err != nil {
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

// pull yields what comes, and the error last.
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

// follow watches until that cannot go on, and returns why.
func (s *Store) follow(ctx context.Context, name string, latest slot) error {
	var last *driver.Value
	for failures := 0; ; {
		heard := false
		err := s.values.Watch(ctx, name, func(v driver.Value) {
			heard = true
			if isNews(last, v) {
				last = &v
				latest.put(v)
			}
		})
		if ctx.Err() != nil || !repeatable(err) {
			return err
		}
		if heard {
			failures = 0
		}
		failures++
		if s.options.Interrupted != nil {
			s.options.Interrupted(name, err)
		}
		s.pause(ctx, failures)
	}
}

// isNews is false for a lower token, which a store that was restored from a
// backup may have, and for what was seen already: a watch that is opened again
// begins with it.
func isNews(last *driver.Value, v driver.Value) bool {
	if last == nil || v.Token > last.Token {
		return true
	}
	same := v.Written.Equal(last.Written) && v.Source == last.Source && bytes.Equal(v.Data, last.Data)
	return v.Token == last.Token && !same
}

// slot holds the latest value that nobody has taken. It has one writer.
type slot chan driver.Value

func (s slot) put(v driver.Value) {
	select {
	case <-s:
	default:
	}
	s <- v
}
