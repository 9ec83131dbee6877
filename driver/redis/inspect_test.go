package redis

import (
	"slices"
	"testing"

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
