package sequence

import (
	"context"
	"fmt"
	"testing"
)

// TestIdleKeysAreForgotten: what is remembered of keys that hold nothing is bounded,
// and one that was forgotten goes on where it was.
func TestIdleKeysAreForgotten(t *testing.T) {
	for cached, want := range map[int]int{-1: 0, 7: 7} {
		s, err := New("test", &Memory{}, func(context.Context, struct{}, Delivery) error { return nil }, &Options{Cached: cached})
		if err != nil {
			t.Fatal(err)
		}
		for seq := range int64(3) {
			for i := range 1000 {
				e := Event{Key: fmt.Sprint(i), Position: Position{Seq: seq + 1}}
				if o, err := s.Offer(t.Context(), e); o != Delivered {
					t.Fatal(o, err)
				}
			}
		}
		if n := len(s.keys); n != want || s.idle.Len() != want {
			t.Errorf("%d keys are remembered, want %d", n, want)
		}
		if err := s.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}
