package redis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

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

func TestStreamsKeepMessagesInOrder(t *testing.T) {
	t.Parallel()
	client := dial(t, testbed.Redis(t).Addr())
	s := NewStream(client, &StreamOptions{Prefix: "app/"})
	var messages []driver.Message
	for i := range 300 {
		messages = append(messages, driver.Message{ID: fmt.Sprint("a", i), Topic: "a", Key: "k", Payload: []byte(fmt.Sprint(i))},
			driver.Message{ID: fmt.Sprint("b", i), Topic: "b"})
	}
	messages[0].Headers = map[string]string{"x": "\"y\""}
	messages[0].Payload = []byte("\x00\xff")
	testbed.OK(t, errors.Join(s.Publish(t.Context(), messages)...))
	a, b := entries(t, client, "app/a"), entries(t, client, "app/b")
	if len(a) != 300 || len(b) != 300 {
		t.Fatalf("%d and %d entries", len(a), len(b))
	}
	for i, e := range a {
		if e.FieldValues["id"] != fmt.Sprint("a", i) || e.FieldValues["key"] != "k" {
			t.Fatalf("entry %d is %v", i, e.FieldValues)
		}
	}
	if f := a[0].FieldValues; f["headers"] != `{"x":"\"y\""}` || f["payload"] != "\x00\xff" || len(f) != 4 {
		t.Errorf("%q", f)
	}
	if f := b[0].FieldValues; len(f) != 2 || f["payload"] != "" {
		t.Errorf("%q", f)
	}
	short := NewStream(client, &StreamOptions{Prefix: "short/", MaxLen: 100})
	for range 10 {
		short.Publish(t.Context(), messages)
	}
	if n := len(entries(t, client, "short/a")); n < 100 || n > 400 {
		t.Errorf("%d entries are kept", n)
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

// TestStreamLostReplies: an unanswered message is Uncertain; sent again, it is
// stored twice with the same id.
func TestStreamLostReplies(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	operator := dial(t, server.Addr())
	proxy := testbed.NewProxy(t, server.Addr())
	s := NewStream(dial(t, proxy.Addr()), nil)
	message := []driver.Message{{ID: "1", Topic: "t", Key: "k"}, {ID: "2", Topic: "t", Key: "k"}}
	if got := s.Publish(t.Context(), []driver.Message{{ID: "0", Topic: "other"}}); got[0] != nil {
		t.Fatal(got)
	}
	proxy.DropReplies()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	for _, err := range s.Publish(ctx, message) {
		if interlock.Kind(err) != interlock.Uncertain {
			t.Errorf("%v (%v)", err, interlock.Kind(err))
		}
	}
	proxy.Heal()
	testbed.Eventually(t, "it is sent again", 20*time.Second, func() bool {
		return !slices.ContainsFunc(s.Publish(t.Context(), message), func(err error) bool { return err != nil })
	})
	var ids []string
	for _, e := range entries(t, operator, "t") {
		ids = append(ids, e.FieldValues["id"])
	}
	if !slices.Equal(ids, []string{"1", "2", "1", "2"}) {
		t.Errorf("entries %v", ids)
	}
	closed, end := context.WithCancel(t.Context())
	end()
	if err := s.Publish(closed, message)[0]; !errors.Is(err, context.Canceled) {
		t.Errorf("after the end: %v", err)
	}
}
