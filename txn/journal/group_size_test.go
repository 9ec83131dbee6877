package journal_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock/driver"
)

// lasting is a store with slow requests, some of which hang.
type lasting struct {
	*slow
	takes time.Duration
	hangs func(size int) <-chan struct{} // nil never
}

func (l lasting) Append(ctx context.Context, appends []driver.Append) []error {
	time.Sleep(l.takes)
	if l.hangs != nil {
		if released := l.hangs(len(appends)); released != nil {
			<-released
		}
	}
	return l.slow.Append(ctx, appends)
}

// TestGroupsAreLarge: appends of clients that append repeatedly form groups of about ten,
// because no small request is sent during a larger one.
func TestGroupsAreLarge(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const clients, each, most = 32, 100, 315
		store := lasting{slow: newSlow(), takes: 10 * time.Millisecond}
		j := open(t, store, nil)
		var work sync.WaitGroup
		for i := range clients {
			work.Go(func() {
				log, err := j.Begin(t.Context(), fmt.Sprint("t", i), "", due, says("begin")...)
				for n := 1; n < each && err == nil; n++ {
					// The time between two appends differs for each client.
					time.Sleep(time.Duration(i*n%7) * 100 * time.Microsecond)
					err = log.Append(t.Context(), due, says("more")...)
				}
				if err != nil {
					t.Error(err)
				}
			})
		}
		work.Wait()
		if len(store.groups) > most {
			t.Errorf("%d requests, at most %d: %v", len(store.groups), most, store.groups)
		}
	})
}

// TestLargeRequestThatHangs: a single append does not wait for others for longer than a
// request takes.
func TestLargeRequestThatHangs(t *testing.T) {
	bubble(t, func(t *testing.T) {
		released := make(chan struct{})
		store := lasting{slow: newSlow(), takes: time.Millisecond, hangs: func(size int) <-chan struct{} {
			if size > 5 {
				return released
			}
			return nil
		}}
		j := open(t, store, nil)
		begin := func(id string) {
			if _, err := j.Begin(t.Context(), id, "", due, says("begin")...); err != nil {
				t.Error(err)
			}
		}
		var work sync.WaitGroup
		for i := range 20 {
			work.Go(func() { begin(fmt.Sprint("t", i)) })
			synctest.Wait()
		}
		time.Sleep(time.Second) // two have returned; the others hang in one request
		for i := range 3 {
			from := time.Now()
			begin(fmt.Sprint("single", i))
			if took := time.Since(from); took > 3*time.Millisecond {
				t.Errorf("number %d took %v", i, took)
			}
		}
		close(released)
		work.Wait()
	})
}
