package route_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/partition"
	"github.com/interlock-dev/interlock/claim/partition/route"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/internal/testbed"
)

func TestMain(m *testing.M) { testbed.Main(m) }

// shop is a group of members that count the orders of each key.
type shop struct {
	t     *testing.T
	space *memory.Space
	http  *http.Client
	mu    sync.Mutex
	seen  map[string][]interlock.Token
}

type member struct {
	*partition.Group
	url string
}

func open(t *testing.T) *shop {
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return &shop{t: t, space: memory.NewSpace(), http: &http.Client{Transport: transport}, seen: map[string][]interlock.Token{}}
}

func keyOf(r *http.Request) (string, error) {
	key := strings.TrimPrefix(r.URL.Path, "/orders/")
	if key == "" {
		return "", fmt.Errorf("no order is named")
	}
	return key, nil
}

// order appends to a key's list, under the guard.
func (s *shop) order(w http.ResponseWriter, r *http.Request) {
	key, _ := keyOf(r)
	c, ok := route.Claim(r.Context())
	if !ok {
		http.Error(w, "no claim", http.StatusInternalServerError)
		return
	}
	if err := s.space.Fence().Enter(r.Context(), driver.Raise{Resource: key, Token: c.Token()}); err != nil {
		http.Error(w, err.Error(), http.StatusConflict)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil || string(body) != "one please" {
		http.Error(w, fmt.Sprintf("the body is %q, %v", body, err), http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	s.seen[key] = append(s.seen[key], c.Token())
	s.mu.Unlock()
	fmt.Fprint(w, c.Owner())
}

// join starts a member with its own server.
func (s *shop) join(name string) *member {
	s.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testbed.OK(s.t, err)
	d := s.space.Open(&memory.Options{TTL: 2 * time.Second})
	s.t.Cleanup(func() { _ = d.Close(context.Background()) })
	g, err := partition.Join(s.t.Context(), d, s.space.Values(), "shop", partition.Layout{Partitions: 8},
		&partition.Options{Identity: name, Address: l.Addr().String()})
	testbed.OK(s.t, err)
	server := &httptest.Server{Listener: l, Config: &http.Server{Handler: route.Handler(g, keyOf, s.order, &route.Options{Transport: s.http.Transport})}}
	server.Start()
	s.t.Cleanup(server.Close)
	s.t.Cleanup(func() {
		if err := g.Leave(context.Background()); err != nil {
			s.t.Error(err)
		}
	})
	return &member{g, server.URL}
}

func (s *shop) settled(members ...*member) {
	s.t.Helper()
	testbed.Eventually(s.t, "every partition is owned, and as many by each", 20*time.Second, func() bool {
		sum := 0
		for _, m := range members {
			n := len(m.Owned())
			if sum += n; n < 8/len(members) {
				return false
			}
		}
		return sum == 8
	})
}

// post sends an order to a member and returns the answer of the member that served it.
func (s *shop) post(url, key, epoch string) (code int, answer string) {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, url+"/orders/"+key, strings.NewReader("one please"))
	testbed.OK(s.t, err)
	if epoch != "" {
		r.Header.Set(route.EpochHeader, epoch)
	}
	resp, err := s.http.Do(r)
	testbed.OK(s.t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	testbed.OK(s.t, err)
	return resp.StatusCode, string(text)
}

func TestEveryMemberBringsAKeyToItsOwner(t *testing.T) {
	s := open(t)
	a, b := s.join("a"), s.join("b")
	s.settled(a, b)
	served := map[string]bool{}
	for i := range 40 {
		key := fmt.Sprint(i)
		_, first := s.post(a.url, key, "")
		code, second := s.post(b.url, key, "")
		if code != http.StatusOK || first != second {
			t.Errorf("%s: by way of a %q, by way of b %d %q", key, first, code, second)
		}
		served[first[:1]] = true
	}
	if len(served) != 2 {
		t.Errorf("only %v served anything", served)
	}
	if code, _ := s.post(a.url, "", ""); code != http.StatusBadRequest {
		t.Errorf("a request without a key: %d", code)
	}
}

// TestOrdersGoOnWhileMembersComeAndGo: no request fails while partitions move as
// planned, and no key's epoch falls.
func TestOrdersGoOnWhileMembersComeAndGo(t *testing.T) {
	s := open(t)
	a, b := s.join("a"), s.join("b")
	s.settled(a, b)
	ctx, cancel := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	for w := range 3 {
		clients.Go(func() {
			for i := w; ctx.Err() == nil; i += 3 {
				if code, text := s.post(a.url, fmt.Sprint(i%30), ""); code != http.StatusOK {
					t.Errorf("%d %s", code, text)
				}
			}
		})
	}
	c := s.join("c")
	testbed.Eventually(t, "the third has its share", 20*time.Second, func() bool { return len(c.Owned()) >= 2 })
	testbed.OK(t, b.Leave(t.Context()))
	s.settled(a, c)
	cancel()
	clients.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, tokens := range s.seen {
		for i := 1; i < len(tokens); i++ {
			if tokens[i] < tokens[i-1] {
				t.Errorf("order %s: epoch %d after %d", key, tokens[i], tokens[i-1])
			}
		}
	}
}

func TestAStaleRouteIsRefusedByItsEpoch(t *testing.T) {
	s := open(t)
	a, b := s.join("a"), s.join("b")
	s.settled(a, b)
	owner, other := a, b
	if _, ok := a.Claim("7"); !ok {
		owner, other = b, a
	}
	c, _ := owner.Claim("7")
	now := c.Token()
	for _, x := range []struct {
		at    *member
		epoch string
		want  int
	}{
		{owner, now.String(), http.StatusOK},
		{owner, (now - 1).String(), http.StatusMisdirectedRequest},
		{owner, (now + 1).String(), http.StatusMisdirectedRequest},
		{other, now.String(), http.StatusMisdirectedRequest}, // and not forwarded again
		{owner, "no number", http.StatusBadRequest},
	} {
		if code, text := s.post(x.at.url, "7", x.epoch); code != x.want {
			t.Errorf("epoch %s at %s: %d %s, want %d", x.epoch, x.at.Self().Identity, code, text, x.want)
		}
	}
}

// TestAnOwnerThatCannotBeReached: the request waits for the next owner, since nothing
// was sent. If there is none after a while, it gets an error.
func TestAnOwnerThatCannotBeReached(t *testing.T) {
	s := open(t)
	d := s.space.Open(&memory.Options{TTL: time.Second})
	defer d.Close(context.Background())
	gone, err := partition.Join(t.Context(), d, s.space.Values(), "shop", partition.Layout{Partitions: 8},
		&partition.Options{Identity: "gone", Address: "127.0.0.1:1"})
	testbed.OK(t, err)
	defer gone.Leave(context.Background())
	testbed.Eventually(t, "it owns everything", 20*time.Second, func() bool { return len(gone.Owned()) == 8 })
	short := httptest.NewServer(route.Router(gone.Map(), keyOf, &route.Options{Transport: s.http.Transport, Wait: 50 * time.Millisecond}))
	defer short.Close()
	if code, text := s.post(short.URL, "7", ""); code != http.StatusServiceUnavailable {
		t.Errorf("%d %s", code, text)
	}
	a := s.join("a")
	patient := httptest.NewServer(route.Router(a.Map(), keyOf, &route.Options{Transport: s.http.Transport, Wait: 20 * time.Second}))
	defer patient.Close()
	done := make(chan int, 1)
	go func() {
		code, _ := s.post(patient.URL, "7", "")
		done <- code
	}()
	testbed.OK(t, gone.Leave(t.Context()))
	if code := <-done; code != http.StatusOK {
		t.Errorf("after the next owner came: %d", code)
	}
}

// TestALongBodyIsSentOnce: a body that is not buffered cannot be sent again.
func TestALongBodyIsSentOnce(t *testing.T) {
	s := open(t)
	a, b := s.join("a"), s.join("b")
	s.settled(a, b)
	router := httptest.NewServer(route.Router(a.Map(), keyOf, &route.Options{Transport: s.http.Transport, MaxBody: 4}))
	defer router.Close()
	testbed.Eventually(t, "the route is not stale", 20*time.Second, func() bool {
		at := a.Map().Locate("7")
		for _, m := range []*member{a, b} {
			if c, ok := m.Claim("7"); ok && c.Token() == at.Epoch {
				return true
			}
		}
		return false
	})
	if code, text := s.post(router.URL, "7", ""); code != http.StatusOK {
		t.Errorf("to its owner: %d %s", code, text)
	}
}

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
	elsewhere := route.Messages(a.Map(), "/elsewhere", &route.Options{Transport: s.http.Transport, Wait: time.Minute})
	if got := elsewhere.Publish(t.Context(), good[:1]); interlock.Kind(got[0]) != interlock.Uncertain || got[0] == nil {
		t.Errorf("a member that does not receive messages yet: %v", got)
	}
	testbed.OK(t, a.Leave(t.Context()))
	sink = route.Messages(a.Map(), "/messages", &route.Options{Transport: s.http.Transport, Wait: 100 * time.Millisecond})
	if got := sink.Publish(t.Context(), batch[2:]); interlock.Kind(got[0]) != interlock.Retryable || got[0] == nil {
		t.Errorf("nobody owns it: %v", got)
	}
}

// TestOnlyReceiveAcceptsMessages: an answer of another handler at the path, as of a member that does not have
// Receive yet, neither delivers a message nor rejects it.
func TestOnlyReceiveAcceptsMessages(t *testing.T) {
	s, code := open(t), 0
	m, _ := s.single(s.space.Values(), nil, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) })
	s.settled(m)
	sink := route.Messages(m.Map(), "/orders/7", &route.Options{Transport: s.http.Transport, Wait: time.Minute})
	for _, code = range []int{http.StatusOK, http.StatusNoContent, http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity, http.StatusServiceUnavailable} {
		err := sink.Publish(t.Context(), []driver.Message{{ID: "m", Topic: "t", Key: "7"}})[0]
		testbed.WantKind(t, err, interlock.Uncertain, nil)
	}
}

// TestAMessageThatArrivesInPartIsNotRejected: its sender, or the network, failed.
func TestAMessageThatArrivesInPartIsNotRejected(t *testing.T) {
	s := open(t)
	a := s.listen(&inbox{seen: map[string][]string{}}, "a")
	s.settled(a)
	for text, want := range map[string]int{`{"ID":"m",`: http.StatusServiceUnavailable, `{"ID":"m",    `: http.StatusBadRequest} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(a.url, "http://"))
		testbed.OK(t, err)
		fmt.Fprintf(conn, "POST /messages HTTP/1.1\r\nHost: shop\r\n%s: k\r\nContent-Length: 14\r\n\r\n%s", route.MessageKeyHeader, text)
		testbed.OK(t, conn.(*net.TCPConn).CloseWrite())
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		testbed.OK(t, err)
		if resp.StatusCode != want {
			t.Errorf("%q: %s, want %d", text, resp.Status, want)
		}
		testbed.OK(t, conn.Close())
	}
}
