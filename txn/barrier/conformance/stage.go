package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/httpclient"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/branchhttp"
)

// A stage is one running play.
type stage struct {
	play
	options     Options
	transaction string // also the account
	begun       time.Time
	sent        atomic.Int64
	model       model       // which the participant has matched so far
	results     map[key]any // of each branch's first
	failure     *Failure
}

func newStage(o Options, p play, number int) *stage {
	return &stage{play: p, options: o, transaction: fmt.Sprintf("%s/%s %d%%", o.Prefix, p.protocol, number),
		begun: o.now(), model: newModel(p.protocol, p.capacity), results: map[key]any{}}
}

// perform plays until the first deviation. An error means that the participant cannot be
// judged.
func (s *stage) perform(ctx context.Context) error {
	for i, m := range s.script {
		for range s.times() {
			if err := s.one(ctx, i+1, m); err != nil || s.failure != nil {
				return err
			}
		}
	}
	if len(s.pair) == 0 {
		return nil
	}
	if err := s.atOnce(ctx); err != nil || s.failure != nil {
		return err
	}
	for i, m := range s.pair { // again, to see their state
		if err := s.one(ctx, len(s.script)+i+1, m); err != nil || s.failure != nil {
			return err
		}
	}
	return nil
}

func (s *stage) times() int {
	if s.twice {
		return 2
	}
	return 1
}

// one sends a message and judges its outcome.
func (s *stage) one(ctx context.Context, position int, m message) error {
	got, err := s.send(ctx, m, false)
	if err != nil {
		return err
	}
	effects, err := s.inspect(ctx)
	if err != nil {
		return err
	}
	want, next := s.model.with(m)
	if !got.matches(want) || effects != next.effects() {
		s.fail(position, m, describe(string(want), next.effects()), describe(got.String(), effects))
		return nil
	}
	s.model = next
	s.compare(position, m, got)
	return nil
}

// compare requires the same result of every first of a branch.
func (s *stage) compare(position int, m message, got reply) {
	if m.kind != first || !got.matches(ok) {
		return
	}
	if before, again := s.results[m.to]; again && !reflect.DeepEqual(before, got.result) {
		s.fail(position, m, fmt.Sprintf("the result of the first time, %v", before), fmt.Sprintf("%v", got.result))
		return
	}
	s.results[m.to] = got.result
}

// atOnce sends the pair, and judges its outcome.
func (s *stage) atOnce(ctx context.Context) error {
	var got [2]reply
	var errs [2]error
	var both sync.WaitGroup
	start := make(chan struct{})
	for i, m := range s.pair {
		both.Go(func() {
			<-start
			got[i], errs[i] = s.send(ctx, m, true)
		})
	}
	close(start)
	both.Wait()
	if err := errors.Join(errs[:]...); err != nil {
		return err
	}
	effects, err := s.inspect(ctx)
	if err == nil {
		s.judge(got, effects)
	}
	return err
}

// judge requires of a pair the outcome of sending one after the other, in either order.
func (s *stage) judge(got [2]reply, effects Effects) {
	position := len(s.script) + 1
	var wanted []string
	for _, order := range [][2]int{{0, 1}, {1, 0}} {
		var want [2]answer
		next := s.model
		for _, i := range order {
			want[i], next = next.with(s.pair[i])
		}
		if got[0].matches(want[0]) && got[1].matches(want[1]) && effects == next.effects() {
			s.model = next
			s.compare(position, s.pair[0], got[0])
			if s.failure == nil {
				s.compare(position+1, s.pair[1], got[1])
			}
			return
		}
		wanted = append(wanted, describe(string(want[0]+" and "+want[1]), next.effects()))
	}
	s.fail(position, s.pair[0], strings.Join(slices.Compact(wanted), " or "), describe(got[0].String()+" and "+got[1].String(), effects))
}

func (s *stage) fail(position int, m message, want, got string) {
	var sequence []branch.Operation
	for _, m := range slices.Concat(s.script, s.pair) {
		sequence = append(sequence, operations[s.protocol][m.kind])
	}
	name := s.name
	if s.twice {
		name = "each twice"
	}
	s.failure = &Failure{Protocol: s.protocol, Play: name, Sequence: sequence, Position: position,
		Operation: operations[s.protocol][m.kind], Expected: want, Got: got}
}

// Input is the body of every message.
type Input struct {
	Account  string `json:"account"`
	Amount   int64  `json:"amount"`
	Capacity int64  `json:"capacity"`
}

// A reply is a participant's answer to a message.
type reply struct {
	status int
	result any    // of a 2xx, decoded from JSON; nil if it is empty
	text   string // of another, and of a 2xx that is not JSON
}

func (r reply) matches(a answer) bool {
	switch {
	case r.status >= 200 && r.status <= 299:
		return a == ok && r.text == ""
	case r.status == http.StatusTooEarly:
		return false
	}
	conflict := r.status == http.StatusConflict
	return a == not || a == no && conflict || a == unheard && !conflict
}

// String returns the answer as a [Failure] shows it.
func (r reply) String() string {
	switch {
	case r.matches(ok):
		return string(ok)
	case r.matches(no):
		return string(no)
	}
	return strings.TrimSpace(fmt.Sprintf("%d %s %.100s", r.status, http.StatusText(r.status), r.text))
}

// unfinished reports whether to send the same message again. A 5xx is judged if no other
// message is concurrent.
func (r reply) unfinished(racing bool) bool {
	return r.status == http.StatusTooEarly || racing && r.status >= 500
}

// send sends a message until it has an answer to judge.
func (s *stage) send(ctx context.Context, m message, racing bool) (reply, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, s.options.Patience, errors.New("the participant did not answer"))
	defer cancel()
	pause := time.NewTimer(0)
	defer pause.Stop()
	<-pause.C
	var last reply
	for attempt := 1; ; attempt++ {
		r, err := s.post(ctx, m, attempt)
		switch {
		case err != nil && attempt > 1 && ctx.Err() != nil:
			return last, nil
		case err != nil || !r.unfinished(racing):
			return r, err
		}
		last = r
		pause.Reset(time.Duration(min(attempt, 25)) * 20 * time.Millisecond)
		select {
		case <-pause.C:
		case <-ctx.Done():
			return r, nil // judged by this answer
		}
	}
}

// post sends a message once.
func (s *stage) post(ctx context.Context, m message, attempt int) (reply, error) {
	amount := int64(1)
	if m.as == otherInput {
		amount = 2
	}
	body, err := json.Marshal(Input{Account: s.transaction, Amount: amount, Capacity: s.capacity})
	if err != nil {
		return reply{}, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.options.URL, strings.NewReader(string(body)))
	if err != nil {
		return reply{}, bug(err)
	}
	if err := branchhttp.SetHeaders(request.Header, s.call(m, attempt)); err != nil {
		return reply{}, bug(err)
	}
	request.Header.Set("Content-Type", "application/json")
	if m.as == headless {
		request.Header.Del(branchhttp.HeaderBranch)
	}
	s.sent.Add(1)
	status, text, err := s.exchange(request)
	r := reply{status: status, text: string(text)}
	if err == nil && status >= 200 && status <= 299 && (len(text) == 0 || json.Unmarshal(text, &r.result) == nil) {
		r.text = ""
	}
	return r, err
}

// defaultBranch is the branch of the zero key. A participant must percent-decode it.
const defaultBranch = "seats / é%2F"

func (s *stage) call(m message, attempt int) branch.Call {
	c := branch.Call{Transaction: s.transaction, Branch: m.to.branch, Step: m.to.step, Operation: operations[s.protocol][m.kind],
		Attempt: attempt, Epoch: 1 << 12, Begun: s.begun, Deadline: s.options.now().Add(s.options.Patience)}
	if c.Branch == "" {
		c.Branch = defaultBranch
	}
	if c.Operation == branch.Try {
		c.Until = s.begun.Add(time.Hour)
	}
	if m.as == late {
		c.Deadline = s.begun.Add(-time.Hour)
	}
	return c
}

// inspect reads the account's effects.
func (s *stage) inspect(ctx context.Context) (e Effects, err error) {
	u, err := url.Parse(s.options.Inspect)
	if err != nil {
		return e, bug(err)
	}
	asked := u.Query()
	asked.Set("account", s.transaction)
	u.RawQuery = asked.Encode()
	ctx, cancel := context.WithTimeout(ctx, s.options.Patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return e, bug(err)
	}
	status, text, err := s.exchange(request)
	if err == nil && (status != http.StatusOK || json.Unmarshal(text, &e) != nil) {
		err = &interlock.Error{Op: "inspect account", Name: s.transaction, Kind: interlock.Definite,
			Err: fmt.Errorf("answered %d %.100s, and not what it has", status, text)}
	}
	return e, err
}

// exchange sends a request and reads the answer.
func (s *stage) exchange(request *http.Request) (status int, body []byte, err error) {
	response, err := httpclient.WithoutRedirects(s.options.Client).Do(request)
	if err == nil {
		defer response.Body.Close()
		status = response.StatusCode
	}
	if err == nil && status != http.StatusSwitchingProtocols { // whose body is the connection, and ignores deadlines
		body, err = io.ReadAll(io.LimitReader(response.Body, branchhttp.MaxBody))
	}
	if err != nil {
		err = &interlock.Error{Op: "reach participant", Name: request.URL.Host, Kind: interlock.Uncertain, Err: failure.RedactError(err)}
	}
	return status, body, err
}
