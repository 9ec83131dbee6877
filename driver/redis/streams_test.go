package redis

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

func entries(t *testing.T, client rueidis.Client, stream string) []rueidis.XRangeEntry {
	t.Helper()
	found, err := client.Do(t.Context(), client.B().Xrange().Key(stream).Start("-").End("+").Build()).AsXRange()
	testbed.OK(t, err)
	return found
}

// TestStreamEntries: an entry has no empty fields but its payload, and a stream is trimmed.
func TestStreamEntries(t *testing.T) {
	t.Parallel()
	client := dial(t, testbed.Redis(t).Addr())
	s := NewStream(client, &StreamOptions{Prefix: "short/", MaxLen: 100})
	for range 30 {
		testbed.OK(t, errors.Join(s.Publish(t.Context(), slices.Repeat([]driver.Message{{ID: "1", Topic: "a"}}, 100))...))
	}
	all := entries(t, client, "short/a")
	if f := all[0].FieldValues; len(all) < 100 || len(all) > 400 || len(f) != 2 || f["id"] != "1" || f["payload"] != "" {
		t.Errorf("%d entries are kept, with %q", len(all), f)
	}
}

// TestStreamFailuresHoldTheirLane: a stream that refuses fails only its topic.
func TestStreamFailuresHoldTheirLane(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	client := dial(t, server.Addr())
	s := NewStream(client, nil)
	testbed.OK(t, client.Do(t.Context(), client.B().Set().Key("wrong").Value("x").Build()).Error())
	m := func(id, topic, key string) driver.Message { return driver.Message{ID: id, Topic: topic, Key: key} }
	got := s.Publish(t.Context(), []driver.Message{m("1", "wrong", "k"), m("2", "wrong", "k"), m("3", "wrong", ""), m("4", "good", "k"),
		m("", "good", "j"), m("6", "good", "j"), m("7", reserved+"x}", "")})
	for i, want := range []interlock.ErrorKind{interlock.Definite, interlock.Retryable, interlock.Definite, -1, interlock.Bug, interlock.Retryable, interlock.Definite} {
		if want == -1 && got[i] != nil || want != -1 && (got[i] == nil || interlock.Kind(got[i]) != want) {
			t.Errorf("%d: %v", i+1, got[i])
		}
	}
	if !errors.Is(got[1], driver.ErrNotSent) || !errors.Is(got[5], driver.ErrNotSent) || !strings.Contains(got[0].Error(), "WRONGTYPE") {
		t.Errorf("%v", got)
	}
	if e := entries(t, client, "good"); len(e) != 1 {
		t.Errorf("%v", e)
	}
}

// TestStreamNotAllowed: a missing right is not a message's fault.
func TestStreamNotAllowed(t *testing.T) {
	t.Parallel()
	client := dial(t, testbed.Redis(t).Addr())
	s := NewStream(client, nil)
	for _, rights := range []string{"~good", "~* -xadd", "-evalsha -eval"} {
		words := append([]string{"SETUSER", "default", "resetkeys"}, strings.Fields(rights)...)
		testbed.OK(t, client.Do(t.Context(), client.B().Arbitrary("ACL").Args(words...).Build()).Error())
		err := s.Publish(t.Context(), []driver.Message{{ID: "1", Topic: "t"}})[0]
		if err == nil || interlock.Kind(err) != interlock.Retryable {
			t.Errorf("%s: %v (%v)", rights, err, interlock.Kind(err))
		}
	}
}

// TestStreamMemory: a full server refuses temporarily.
func TestStreamMemory(t *testing.T) {
	t.Parallel()
	client := dial(t, testbed.Redis(t, "--maxmemory", "1", "--maxmemory-policy", "noeviction").Addr())
	err := NewStream(client, nil).Publish(t.Context(), []driver.Message{{ID: "1", Topic: "t"}})[0]
	if interlock.Kind(err) != interlock.Retryable || err == nil {
		t.Errorf("%v (%v)", err, interlock.Kind(err))
	}
}
