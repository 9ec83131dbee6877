package memory_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
)

func TestSinkHoldsBackWhatFollowsAFailure(t *testing.T) {
	var s memory.Sink
	refused := errors.New("no")
	s.Refuse(func(m driver.Message) error {
		if m.ID == "2" || m.ID == "5" {
			return refused
		}
		return nil
	})
	messages := []driver.Message{{ID: "1", Topic: "t", Key: "k"}, {ID: "2", Topic: "t", Key: "k"}, {ID: "3", Topic: "t", Key: "k"},
		{ID: "4", Topic: "t", Key: "other"}, {ID: "5", Topic: "t"}, {ID: "6", Topic: "t"}, {ID: "7", Topic: "u", Key: "k"}, {ID: "8"}}
	got := s.Publish(t.Context(), messages)
	for i, want := range []error{nil, refused, driver.ErrNotSent, nil, refused, nil, nil, interlock.ErrName} {
		if !errors.Is(got[i], want) || (got[i] == nil) != (want == nil) {
			t.Errorf("message %s: %v, want %v", messages[i].ID, got[i], want)
		}
	}
	var taken []string
	for _, m := range s.Messages() {
		taken = append(taken, m.ID)
	}
	if !slices.Equal(taken, []string{"1", "4", "6", "7"}) {
		t.Errorf("took %v", taken)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Publish(ended, messages[3:4])[0]; !errors.Is(err, context.Canceled) {
		t.Errorf("after the end: %v", err)
	}
}
