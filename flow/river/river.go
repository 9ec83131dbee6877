// Package river has an outbox sink that inserts River jobs, for a River in another database than the
// outbox. Jobs have no order: River works on them concurrently. Within one database use River's InsertTx
// in the transaction instead.
//
//	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{}) // without workers: it inserts only
//	sink := interlockriver.NewSink(client, postgres.Pool(pool), once.Inbox{Consumer: "jobs"}, nil)
//	relay, err := outbox.Start(ctx, "postgres://127.0.0.1/shop", outbox.Table{}, sink, nil)
package river

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"unicode/utf8"

	"github.com/riverqueue/river"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/guard/once"
)

// Metadata is what a job of a Sink has under "interlock" in its metadata.
type Metadata struct {
	ID      string            `json:"id"`            // percent-encoded: url.PathUnescape
	Key     string            `json:"key,omitempty"` // percent-encoded
	Headers map[string]string `json:"headers,omitempty"`
}

// Options of a Sink; nil and the zero value work.
type Options struct {
	// Insert returns the options of the job of a message, such as its queue and priority; nil, or a nil
	// result, means River's defaults. The Sink sets Metadata.
	Insert func(m driver.Message) *river.InsertOpts
}

// A Sink inserts a job for each message: its kind is the topic, its args are the payload, which must be
// JSON, or {} if it is empty. It implements driver.Sink. The inbox records the id of a message
// in the transaction that inserts the job. So a repeated message inserts no second job while the
// inbox keeps the record.
type Sink[T any] struct {
	client  *river.Client[T]
	db      driver.Beginner[T]
	inbox   once.Inbox
	options Options
}

var _ driver.Sink = (*Sink[int])(nil)

// NewSink returns a sink. db is the database of the client, and has the tables of the inbox. The client
// needs no workers. If it has workers, a topic without one is rejected and retried.
func NewSink[T any](client *river.Client[T], db driver.Beginner[T], inbox once.Inbox, o *Options) *Sink[T] {
	s := &Sink[T]{client: client, db: db, inbox: inbox}
	s.options = *cmp.Or(o, &Options{})
	return s
}

// Publish inserts jobs; see driver.Sink. All messages share one transaction. If it is rejected, each
// message has a transaction of its own, so that no message fails another one.
func (s *Sink[T]) Publish(ctx context.Context, messages []driver.Message) []error {
	answers := make([]error, len(messages))
	jobs := make([]river.InsertManyParams, len(messages))
	var lanes [][]int
	var all []int
	for _, lane := range driver.Lanes(messages) {
		for n, i := range lane {
			if jobs[i], answers[i] = s.job(messages[i]); answers[i] != nil {
				holdBack(answers, lane[n+1:])
				lane = lane[:n]
				break
			}
		}
		lanes, all = append(lanes, lane), append(all, lane...)
	}
	if len(all) == 0 {
		return answers
	}
	if err := s.insert(ctx, messages, jobs, all, answers); err == nil || len(all) == 1 || !isRejection(err) {
		return answers
	}
	for _, lane := range lanes {
		for n, i := range lane {
			if err := s.insert(ctx, messages, jobs, lane[n:n+1], answers); err != nil || answers[i] != nil {
				holdBack(answers, lane[n+1:])
				break
			}
		}
	}
	return answers
}

func holdBack(answers []error, behind []int) {
	for _, i := range behind {
		answers[i] = driver.ErrNotSent
	}
}

// job returns the job of a message, or why there is none.
func (s *Sink[T]) job(m driver.Message) (p river.InsertManyParams, err error) {
	if m.ID == "" || m.Topic == "" {
		return p, problem(m, interlock.Bug, interlock.ErrName)
	}
	payload := m.Payload
	if len(payload) == 0 {
		payload = []byte("{}")
	}
	if !json.Valid(payload) {
		return p, problem(m, interlock.Definite, errors.New("the payload is not JSON"))
	}
	for name, value := range m.Headers {
		if !utf8.ValidString(name) || !utf8.ValidString(value) {
			return p, problem(m, interlock.Definite, fmt.Errorf("the header %.300q is not UTF-8", name))
		}
	}
	var o river.InsertOpts
	if s.options.Insert != nil {
		if own := s.options.Insert(m); own != nil {
			o = *own
		}
	}
	// Strings always marshal.
	o.Metadata, _ = json.Marshal(map[string]Metadata{"interlock": {url.PathEscape(m.ID), url.PathEscape(m.Key), m.Headers}})
	return river.InsertManyParams{Args: args{m.Topic, payload}, InsertOpts: &o}, nil
}

// args are the args of a job.
type args struct {
	kind string
	json.RawMessage
}

func (a args) Kind() string { return a.kind }

// insert inserts the jobs of those chosen messages that are new, in one transaction, and sets all answers.
func (s *Sink[T]) insert(ctx context.Context, messages []driver.Message, jobs []river.InsertManyParams, chosen []int, answers []error) error {
	if ctx.Err() != nil {
		err := context.Cause(ctx)
		for _, i := range chosen {
			answers[i] = problem(messages[i], interlock.Retryable, err)
		}
		return err
	}
	entries, at := make([]once.Message, len(chosen)), map[string]int{}
	for n, i := range chosen {
		entries[n] = once.Message{ID: messages[i].ID, Payload: messages[i].Payload}
		at[messages[i].ID] = i
	}
	outcomes, err := once.BatchTx(ctx, s.db, s.inbox, entries, func(ctx context.Context, tx T, fresh []once.Message) error {
		params := make([]river.InsertManyParams, len(fresh))
		for n, m := range fresh {
			params[n] = jobs[at[m.ID]]
		}
		_, err := s.client.InsertManyTx(ctx, tx, params)
		return err
	})
	for n, i := range chosen {
		switch {
		case err != nil:
			answers[i] = problem(messages[i], kindOf(err), err)
		case outcomes[n] == once.Mismatched:
			answers[i] = problem(messages[i], interlock.Definite, errors.New("another message has the same id"))
		default:
			answers[i] = nil
		}
	}
	return err
}

// isRejection reports whether one message may be the reason of an error: the database has rejected the
// transaction, or the client a job.
func isRejection(err error) bool {
	kind := kindOf(err)
	return kind == interlock.Definite || kind == interlock.Bug || kind == interlock.Retryable && !errors.As(err, new(*interlock.Error))
}

// kindOf returns the kind of an error of the transaction. An error of the client without a kind occurred
// before the commit, so nothing was inserted. The end of a context is no fault of a message, nor is a
// missing table, column or right: class 42 of PostgreSQL is about the statement, not its parameters.
func kindOf(err error) interlock.ErrorKind {
	var known *interlock.Error
	var state interface{ SQLState() string }
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return interlock.Uncertain
	case errors.As(err, &state) && strings.HasPrefix(state.SQLState(), "42"):
		return interlock.Retryable
	case errors.As(err, &known):
		return interlock.Kind(err)
	}
	return interlock.Retryable
}

func problem(m driver.Message, kind interlock.ErrorKind, err error) error {
	return &interlock.Error{Op: "insert job", Driver: "river", Name: m.ID, Kind: kind, Err: err}
}
