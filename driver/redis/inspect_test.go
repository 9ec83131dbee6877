package redis

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/testbed"
)

func TestListNamesThatLookLikePatterns(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	d := openOn(t, server.Addr(), &Options{Prefix: "app[1]*:"})
	names := []string{"a*", "a?b", `a\`, "a[x]", "a", "ab", "a:hold:b", "a}:queue:c", "b", "\xffx"}
	for _, name := range names {
		take(t, d, name)
	}
	operator := dial(t, server.Addr())
	take(t, openOn(t, server.Addr(), nil), "app1x:hidden") // matches the prefix as a pattern only
	mustDo(t, operator, "SET", "app[1]*:foreign", "x")
	await(t, d, "foreign") // it has a waiter, so it is listed

	slices.Sort(names)
	for prefix, want := range map[string][]string{
		"": slices.Sorted(slices.Values(append(slices.Clone(names), "foreign"))), "a*": {"a*"}, "a[": {"a[x]"}, `a\`: {`a\`},
		"a:": {"a:hold:b"}, "\xff": {"\xffx"}, "none": nil,
	} {
		states, more, err := d.Locks(t.Context(), prefix, 100)
		if err != nil || more {
			t.Fatal(err, more)
		}
		if got := namesOf(states); !slices.Equal(got, want) {
			t.Errorf("below %q: %q, want %q", prefix, got, want)
		}
	}
	if states, more, err := d.Locks(t.Context(), "a", 2); err != nil || !more || len(states) != 2 {
		t.Errorf("the first two: %+v, %v, %v", states, more, err)
	}
}

// What only reads changes nothing: without an answer it is Retryable, not Uncertain.
func TestLostReadsAreRetryable(t *testing.T) {
	t.Parallel()
	path := testbed.NewProxy(t, testbed.Redis(t).Addr())
	client := dial(t, path.Addr())
	d, limits, queues := openWith(t, client, nil), NewLimiter(client, ""), NewQueue(client, nil)
	take(t, d, "x")
	path.Cut()
	for what, read := range map[string]func(context.Context) error{
		"lock":   func(ctx context.Context) error { _, err := d.Lock(ctx, "x"); return err },
		"list":   func(ctx context.Context) error { _, _, err := d.Locks(ctx, "", 1); return err },
		"scan":   func(ctx context.Context) error { _, _, err := d.ForeignLocks(ctx, "x", 1); return err },
		"breaks": func(ctx context.Context) error { _, err := d.Breaks(ctx, "", 1); return err },
		"rights": func(ctx context.Context) error { _, _, err := d.MissingRights(ctx, "x"); return err },
		"limit":  func(ctx context.Context) error { _, err := limits.Limit(ctx, "x"); return err },
		"queue":  func(ctx context.Context) error { _, err := queues.Stuck(ctx, "x", 1); return err },
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		if err := read(ctx); err == nil || interlock.Kind(err) != interlock.Retryable {
			t.Errorf("%s: %v (%v)", what, err, interlock.Kind(err))
		}
		cancel()
	}
	path.Heal()
}
