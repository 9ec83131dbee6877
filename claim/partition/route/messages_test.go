package route_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"net/http"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/partition"
	"github.com/interlock-dev/interlock/claim/partition/route"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// inbox records the messages that the members of a group have handled.
type inbox struct {
	mu   sync.Mutex
	seen map[string][]string // by key: members and messages
	fail error
}

func (i *inbox) receives(s *shop, identity string) func(context.Context, interlock.Claim, driver.Message) error {
	return func(ctx context.Context, c interlock.Claim, m driver.Message) error {
		if err := s.space.Fence().Enter(ctx, driver.Raise{Resource: m.Key + m.ID, Token: c.Token()}); err != nil {
			return err
		}
		i.mu.Lock()
		defer i.mu.Unlock()
		if i.fail != nil && m.ID == "bad" {
			return i.fail
		}
		i.seen[m.Key] = append(i.seen[m.Key], identity+" "+m.ID+" "+string(m.Payload)+m.Headers["h"])
		return nil
	}
}

// listen starts a member that receives messages.
func (s *shop) listen(i *inbox, identity string) *member {
	s.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testbed.OK(s.t, err)
	d := s.space.Open(&memory.Options{TTL: time.Minute}) // a busy machine loses none
	s.t.Cleanup(func() { _ = d.Close(context.Background()) })
	g, err := partition.Join(s.t.Context(), d, s.space.Values(), "shop", partition.Layout{Partitions: 8},
		&partition.Options{Identity: identity, Address: l.Addr().String()})
	testbed.OK(s.t, err)
	mux := http.NewServeMux()
	mux.Handle("/messages", route.Receive(g, i.receives(s, identity), &route.Options{Failed: func(*http.Request, error) {}}))
	server := &httptest.Server{Listener: l, Config: &http.Server{Handler: mux}}
	server.Start()
	s.t.Cleanup(server.Close)
	s.t.Cleanup(func() { _ = g.Leave(context.Background()) })
	return &member{g, server.URL}
}

// TestMessagesReachTheOwnersOfTheirKeys, those of one key in order, also while a member
// joins and acquires half of the partitions.
func TestMessagesReachTheOwnersOfTheirKeys(t *testing.T) {
	s, i := open(t), &inbox{seen: map[string][]string{}}
	a := s.listen(i, "a")
	s.settled(a)
	sink := route.Messages(a.Map(), "/messages", &route.Options{Transport: s.http.Transport})
	publish := func(round int) {
		t.Helper()
		var batch []driver.Message
		for n := range 40 {
			batch = append(batch, driver.Message{ID: fmt.Sprint(round, "-", n), Topic: "t", Key: fmt.Sprint("key/", n%10),
				Payload: []byte("x"), Headers: map[string]string{"h": "y"}})
		}
		for n, err := range sink.Publish(t.Context(), batch) {
			if err != nil {
				t.Fatalf("message %d: %v", n, err)
			}
		}
	}
	publish(0)
	b := s.listen(i, "b")
	for round := 1; round < 5; round++ {
		publish(round)
	}
	s.settled(a, b)
	publish(5)
	i.mu.Lock()
	defer i.mu.Unlock()
	owners := map[string]bool{}
	for n := range 10 {
		key := fmt.Sprint("key/", n)
		if len(i.seen[key]) != 24 {
			t.Errorf("%s: %d of 24 messages: %q", key, len(i.seen[key]), i.seen[key])
		}
		var order []string
		for round := range 6 {
			for k := n; k < 40; k += 10 {
				order = append(order, fmt.Sprint(round, "-", k, " xy"))
			}
		}
		var got []string
		for _, text := range i.seen[key] {
			owners[text[:1]] = true
			got = append(got, text[2:])
		}
		if !slices.Equal(got, order) {
			t.Errorf("%s: %q, want %q", key, got, order)
		}
	}
	if len(owners) != 2 {
		t.Errorf("only %v handled messages", owners)
	}
}

// TestAHandlersErrorDecides whether a message is sent again. A refused token says nothing about the
// message. Later messages of its key are not sent; those of other keys are.
func TestAHandlersErrorDecides(t *testing.T) {
	s, i := open(t), &inbox{seen: map[string][]string{}}
	a := s.listen(i, "a")
	s.settled(a)
	sink := route.Messages(a.Map(), "/messages", &route.Options{Transport: s.http.Transport, Wait: time.Minute})
	batch := []driver.Message{{ID: "bad", Topic: "t", Key: "k"}, {ID: "next", Topic: "t", Key: "k"}, {ID: "other", Topic: "t", Key: "l"}}
	for _, kind := range []interlock.ErrorKind{interlock.Definite, interlock.Retryable, interlock.Uncertain} {
		i.fail = &interlock.Error{Op: "handle", Kind: kind, Err: errors.New("no")}
		got := sink.Publish(t.Context(), batch)
		if interlock.Kind(got[0]) != kind || got[0] == nil || !errors.Is(got[1], driver.ErrNotSent) || got[2] != nil {
			t.Errorf("%v: %v", kind, got)
		}
	}
	i.fail = &interlock.StaleTokenError{Resource: "k", Seen: 2, Got: 1}
	if got := sink.Publish(t.Context(), batch); interlock.Kind(got[0]) != interlock.Retryable || got[0] == nil {
		t.Errorf("the guard has seen another owner, which can handle it: %v", got)
	}
	i.fail = nil
	good := []driver.Message{{ID: "no key", Topic: "t"}, {ID: "bad", Topic: "t", Key: "k"}, {ID: "large", Topic: "t", Payload: make([]byte, 1<<20)}}
	testbed.OK(t, errors.Join(sink.Publish(t.Context(), good)...))
	testbed.OK(t, a.Leave(t.Context()))
	sink = route.Messages(a.Map(), "/messages", &route.Options{Transport: s.http.Transport, Wait: 100 * time.Millisecond})
	if got := sink.Publish(t.Context(), batch[2:]); interlock.Kind(got[0]) != interlock.Retryable || got[0] == nil {
		t.Errorf("nobody owns it: %v", got)
	}
}
